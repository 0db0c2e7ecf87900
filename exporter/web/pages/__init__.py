"""The HTML pages.

Pure, without aiohttp:
status     the whole status page, made of the state and of what its address asks for
banner     how fresh the mapping is
findings   anomalies as plain sentences
resources  resources and their bars
form       what can be asked for, and what is
sorting    in which order rows stand
grouping   which rows stand together, and what of them is on one page
headers    the groups' headings, which count
rows       devices and claimed devices
containers containers with CPUs or memory of their own
whens      moments, and pages whose ages are filled in when they are sent
templating the HTML, its rows kept; imported for the first page alone

The pages of one device, one pod, one claimed device, and of the past; pure likewise:
device, device_facts
           who has a device, since when, and is it well; what it is, who had it before
pod, pod_facts, lives, numa
           what a pod holds and held; which pods bore its name; where it all lies
claim      who has a claimed device
history, asked
           who held what in a time or at a moment, and how that is asked
past, section, spans
           holdings as rows and as bars; the range that is looked at
timeline, scale, labels, ticks
           holdings over time as a drawing
told       ends of holdings, and when nobody looked, in words
fresh      how far the mapping can be trusted
facts_templates
           their HTML; imported for the first of them alone

With aiohttp:
serving    the status page's address, and a page for what is not there
facts_serving
           the other pages' addresses
"""
