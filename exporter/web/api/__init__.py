"""/api/v1/…: the JSON documents.

Pure, without aiohttp:
schema, history_schema, explain_schema
           the documents' shapes; `devicelens who` reads and writes the same
documents  the mapping's documents, made of the state
entries    what plugins tell, and what is wrong, in those documents
history_query, history_documents
           the past's
explain_documents
           one device explained

With aiohttp:
mapping    devices, pods, claims, resources, anomalies, status
history    /api/v1/history
explain    /api/v1/explain
"""
