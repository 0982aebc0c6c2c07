"""An HTTP/1.1 server: http_server.py PORT. Answers each request with as many bytes as its path ends with, and repeats the
path in a header."""
import http.server
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        size = int(self.path.rsplit("/", 1)[1])
        self.send_response(200)
        self.send_header("X-Request", self.path)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        self.wfile.write(b"x" * size)

    do_POST = do_GET

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("", int(sys.argv[1])), Handler).serve_forever()
