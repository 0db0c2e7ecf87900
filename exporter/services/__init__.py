"""What the exporter does all the time.

board          where the present state hangs
refresh        the loop that asks the kubelet
understanding  what the kubelet's answers say
identities     who the pods are, and what follows from it
triggers       what makes it ask: the timer and the kubelet's directories
observers      several who follow the refresh loop
historian      follows the mapping into history, and answers for it
history_families
               what Prometheus gets of history itself
families       what Prometheus gets of each snapshot
pod_families   and of the pods that hold something
metrics        all that Prometheus gets, kept between scrapes
clock          unix time that does not jump while it matters
"""
