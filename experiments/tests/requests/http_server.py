"""An HTTP/1.1 server: http_server.py PORT. Answers each request with as many bytes as its path ends with, and repeats the
path in a header. If the path begins with /whole/, the answer is one write, otherwise its head and its body are one each."""
import http.server
import io
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        size = int(self.path.rsplit("/", 1)[1])
        connection = self.wfile
        self.wfile = io.BytesIO() if self.path.startswith("/whole/") else connection
        self.send_response(200)
        self.send_header("X-Request", self.path)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        self.wfile.write(b"x" * size)
        if self.wfile is not connection:
            connection.write(self.wfile.getvalue())
            self.wfile = connection

    do_POST = do_GET

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("", int(sys.argv[1])), Handler).serve_forever()
