"""Asks the server in http_server.py: http_client.py SERVER IN_TIME COUNT RATE KIND. Of KIND "get" all requests have one segment; of
KIND "all" some have a body of several segments, some connections are used for one request, and now and then nothing
that comes from the server is let through for a while, so that the request is sent again. Of KIND "large" each answer is
one write of 20 to 60 kB, and some requests are one of 20 kB. Prints how many requests there were, how many were answered within
IN_TIME seconds, and how many were sent again for that reason."""
import http.client
import json
import socket
import struct
import subprocess
import sys
import time

server, in_time, count, rate, kind = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5]
answered, twice = 0, 0


def connect():
    connection = http.client.HTTPConnection(server, 8080, timeout=60)
    connection.connect()
    return connection


def tc(arguments):
    subprocess.run(["tc"] + arguments.split(), check=True)


def resent(connection):
    """How many segments TCP has sent again on a connection: tcpi_total_retrans of struct tcp_info (linux/tcp.h)."""
    return struct.unpack_from("I", connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 100)[0]


def ask(connection, number):
    """One request; returns whether its answer is right and in time, and whether it was sent again."""
    asked = time.monotonic()
    path = f"/{number}/{30000 if number % 5 == 0 else 100}"
    headers = {}
    if kind == "large":
        path = f"/whole/{number}/{20000 + 1000 * (number % 41)}"
        headers = {"X-Padding": "y" * 20000} if number % 3 == 1 else {}
    posts = kind == "all" and number % 3 == 1
    if kind == "all" and number % 50 == 12:
        tc("qdisc add dev eth0 clsact")
        tc("filter add dev eth0 ingress matchall action drop")
        before, until = resent(connection), time.monotonic() + 60
        connection.request("GET", path)
        while resent(connection) == before and time.monotonic() < until:
            time.sleep(0.05)
        again = int(resent(connection) != before)
        tc("qdisc del dev eth0 clsact")
    else:
        connection.request("POST" if posts else "GET", path, b"y" * 20000 if posts else None, headers)
        again = 0
    response = connection.getresponse()
    body = response.read()
    right = response.getheader("X-Request") == path and len(body) == int(path.rsplit("/", 1)[1])
    return right and time.monotonic() - asked < in_time, again


kept = [connect() for _ in range(4)]
start = time.monotonic()
for number in range(count):
    once = kind == "all" and number % 10 == 7
    connection = connect() if once else kept[number % len(kept)]
    right, again = ask(connection, number)
    answered, twice = answered + right, twice + again
    if once:
        connection.close()
    time.sleep(max(0.0, start + (number + 1) / rate - time.monotonic()))
print(json.dumps({"sent": count, "received": answered, "twice": twice}))
