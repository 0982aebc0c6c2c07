"""Asks a DNS server: dns.py SERVER IN_TIME COUNT RATE. Every third question is sent twice, and between the questions goes what is
none. Prints how many questions there were, how many were answered within IN_TIME seconds, and how many were sent twice."""
import json
import random
import select
import socket
import struct
import sys
import time

server, in_time, count, rate = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(4)]
waiting, answered, twice = {}, 0, 0


def question(number):
    labels = [f"host{number}", "Example", "test"]
    cased = ["".join(random.choice((c.upper(), c.lower())) for c in label) for label in labels]
    name = b"".join(bytes([len(label)]) + label.encode() for label in cased) + b"\0"
    return struct.pack(">6H", number, 0x0100, 1, 0, 0, 0) + name + struct.pack(">2H", 1, 1)


def take(until):
    global answered
    while (left := until - time.monotonic()) > 0:
        if not waiting and left > 1:
            return
        for ready in select.select(sockets, [], [], left)[0]:
            message = ready.recv(4096)
            asked = waiting.pop((ready, struct.unpack(">H", message[:2])[0]), None)
            answered += asked is not None and time.monotonic() - asked < in_time


start = time.monotonic()
for number in range(count):
    sender = sockets[number % len(sockets)]
    whole = question(number)
    waiting[sender, number] = time.monotonic()
    for _ in range(2 if number % 3 == 0 else 1):
        sender.sendto(whole, (server, 53))
    twice += number % 3 == 0
    odd = [whole[:17], b"\xff" * 40, whole[:4] + b"\0\2" + whole[6:], whole[:12] + b"\xc0\x0c" + whole[-4:]]
    sender.sendto(odd[number % 4], (server, 53))
    take(start + (number + 1) / rate)
take(time.monotonic() + 20)
print(json.dumps({"sent": count, "received": answered, "twice": twice}))
