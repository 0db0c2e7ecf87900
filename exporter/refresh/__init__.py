"""The refresh loop: what triggers a refresh, how often the kubelet is asked, how an answer is decoded."""
