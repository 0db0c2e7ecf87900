"""Documents, filters, links, and wording that the API, the pages, and the commands share."""
