#!/usr/bin/env python3
"""Prints free TCP ports of 127.0.0.1, for programs that a test stops and starts again at their ports.

    scripts/free_ports.py [COUNT]

Linux gives outgoing connections the ports from 32768 on, and a program that asks for any port one of those. Between a stop and
a start such a port may be gone. The ports here lie below, above those of the testnet's churn, and none is a program's default.
"""

import random
import socket
import sys

FIRST_PORT, END = 30_000, 31_400


def free_ports(count):
    """This many ports, each another one."""
    held = []
    try:
        for port in random.sample(range(FIRST_PORT, END), END - FIRST_PORT):
            if len(held) == count:
                break
            try:
                held.append(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
        if len(held) < count:
            sys.exit(f"error: no {count} free ports from {FIRST_PORT} to {END - 1}")
        return [listener.getsockname()[1] for listener in held]
    finally:
        for listener in held:
            listener.close()


if __name__ == "__main__":
    print(*free_ports(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
