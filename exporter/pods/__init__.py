"""Who the node's pods are: two sources, each of which tells the same things.

told         what a source tells, and how it fails
decode       pods as the sources have them, made into identities
pods_api     the kubelet's Pods API
api_server   the API server's watch of this node's pods; imported only where it is asked for
api_answers  what it answers, and how it refuses
api_access   how it is reached: in-cluster files or a kubeconfig
"""
