"""/api/v1/…: the JSON documents.

Pure, without aiohttp:
schema, history_schema, explain_schema
           the documents' shapes; `devicelens who` reads and writes the same
documents  the mapping's documents, made of the state
entries    what plugins tell, and what is wrong, in those documents
filters    which claims, resources and anomalies a query keeps
history_query, history_documents
           the past's
explain_documents
           one device explained
about_schema
           the shapes in which the API speaks of itself: its index, and problems
operations, parameters, responses, openapi
           what is at each address, and the OpenAPI document made of it; imported where it is asked for

With aiohttp:
serving    how every address answers: what is accepted, tags, errors
mapping    devices, pods, claims, resources, anomalies, status
history    /api/v1/history
explain    /api/v1/explain
index      /api/v1
openapi_serving
           /api/openapi.json
"""
