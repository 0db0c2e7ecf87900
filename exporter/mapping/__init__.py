"""The mapping of devices to pods: snapshot, identity, holdings, and anomalies. Pure: no grpc, no aiohttp."""
