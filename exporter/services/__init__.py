"""What the exporter does all the time.

board          where the present state hangs
refresh        the loop that asks the kubelet
understanding  what the kubelet's answers say
triggers       what makes it ask: the timer and the kubelet's directories
families       what Prometheus gets of each snapshot
metrics        all that Prometheus gets, kept between scrapes
clock          unix time that does not jump while it matters
"""
