"""The devices of a resource: identity, claims, health, inventory, preference. Pure: no grpc, no aiohttp."""
