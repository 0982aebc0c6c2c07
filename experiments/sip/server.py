"""A SIP server that answers INVITE and BYE with 200: by a thread for each request, or by a pool of threads.

    server.py thread|pool ADDRESS PORT

Prints `serving` when it is ready. When it gets SIGTERM it prints, as JSON, how many requests it has answered and how many
threads it has created for that, and ends.
"""

import json
import os
import queue
import signal
import socket
import sys
import threading
import time

POOL = 4
# What a request costs, s: the same for both, so that they differ by who does it.
WORK = 0.005

mode, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((address, port))
jobs = queue.SimpleQueue()
counts = {"answered": 0, "threads": 0}


def answer(message, client):
    begun = time.thread_time()
    while time.thread_time() - begun < WORK:
        pass
    lines = message.decode("latin-1").split("\r\n")
    copied = [line for line in lines if line.lower().startswith(("via:", "from:", "call-id:", "cseq:"))]
    to = next(line for line in lines if line.lower().startswith("to:"))
    if "tag=" not in to:
        to += ";tag=server"
    contact = f"Contact: <sip:{address}:{port}>"
    response = ["SIP/2.0 200 OK", *copied, to, contact, "Content-Length: 0", "", ""]
    server.sendto("\r\n".join(response).encode("latin-1"), client)


def work():
    while True:
        answer(*jobs.get())


def end(*_):
    print(json.dumps(counts), flush=True)
    os._exit(0)


signal.signal(signal.SIGTERM, end)
if mode == "pool":
    for _ in range(POOL):
        threading.Thread(target=work, daemon=True).start()
print("serving", flush=True)
while True:
    message, client = server.recvfrom(65536)
    if not message.startswith((b"INVITE ", b"BYE ")):
        continue
    counts["answered"] += 1
    if mode == "pool":
        jobs.put((message, client))
    else:
        counts["threads"] += 1
        threading.Thread(target=answer, args=(message, client), daemon=True).start()
