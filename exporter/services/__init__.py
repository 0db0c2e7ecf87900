"""What the exporter does all the time.

board    where the present state hangs
refresh  the loop that asks the kubelet
triggers what makes it ask: the timer and the kubelet's directories
metrics  the families that Prometheus gets
"""
