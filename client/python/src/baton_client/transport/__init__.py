"""libp2p over TCP: multistream-select, Noise XX, Yamux, and the ping and identify that a Baton node expects.

Only the part that a client needs: it dials, opens substreams, and answers pings.
"""
