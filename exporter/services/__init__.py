"""What the exporter does all the time.

board          where the present state hangs
refresh        the loop that asks the kubelet
pace           how often, and how soon again after a failure
partners       whom it works with: why it asks, whom, and who is told
understanding  what the kubelet's answers say
identities     who the pods are, and what follows from it
plugins        asks plugins what they tell of their devices
triggers       what makes it ask: the timer and the kubelet's directories
observers      several who follow the refresh loop
historian      follows the mapping into history, and answers for it
history_families
               what Prometheus gets of history itself
families       what Prometheus gets of each snapshot
device_families
               those of them with a series for each device, as lines
pod_families   and of the pods that hold something
series         how many series there are, and which are left out where there are too many
metrics        all that Prometheus gets, kept between scrapes
clock          unix time that does not jump while it matters
"""
