"""Asks the server in key_server.py: key_client.py SERVER IN_TIME COUNT RATE. Two requests at a time; now and then a datagram that is
too short to be one. Prints how many requests there were and how many were answered within IN_TIME seconds."""
import json
import select
import socket
import struct
import sys
import time

server, in_time, count, rate = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(4)]
waiting, answered = {}, 0


def take(until):
    global answered
    while (left := until - time.monotonic()) > 0:
        if not waiting and left > 1:
            return
        for ready in select.select(sockets, [], [], left)[0]:
            message = ready.recv(4096)
            asked = waiting.pop((ready, message[2:6]), None)
            answered += asked is not None and message[6:] == b"answer" and time.monotonic() - asked < in_time


start = time.monotonic()
for number in range(count):
    sender = sockets[number % len(sockets)]
    key = struct.pack(">I", number)
    waiting[sender, key] = time.monotonic()
    sender.sendto(struct.pack(">H", number * 7 % 65536) + key + b"question" * (1 + number % 3), (server, 9000))
    if number % 10 == 3:
        sender.sendto(b"short", (server, 9000))
    if number % 2:
        take(start + (number + 1) / rate)
take(time.monotonic() + 20)
print(json.dumps({"sent": count, "received": answered}))
