"""Requests that are wrong, and the handshake for bodies."""

import socket
from urllib.parse import urlsplit

from support import ENDPOINT, Case, fields_of, request


def converse(head, body=b"", wait=None):
    """Sends `head`, and `body` after an answer whose first line holds `wait`; returns the first line and the last."""
    parts = urlsplit(ENDPOINT)
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
        connection.sendall(head)
        file = connection.makefile("rb")
        first = file.readline()
        if wait and wait in first:
            while file.readline() not in (b"\r\n", b""):
                pass
            connection.sendall(body)
            return first, file.readline()
        return first, first


def head_of(method, path, change):
    """A signed request's head as text, as `change` leaves its fields."""
    fields = fields_of(method, path, payload="UNSIGNED-PAYLOAD")
    change(fields)
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class Lengths(Case):
    def status(self, change, path=None, body=b""):
        head = head_of("PUT", path or self.path("k"), change)
        first, _ = converse(head + body)
        return int(first.split()[1])

    def test_no_length(self):
        self.assertEqual(self.status(lambda f: f.pop("Content-Length")), 411)

    def test_no_length_for_a_bucket(self):
        name = self.path() + "-b"
        status = self.status(lambda f: f.pop("Content-Length"), path=name)
        self.buckets.append(name[1:])
        self.assertEqual(status, 200)

    def test_negative(self):
        self.assertEqual(self.status(lambda f: f.update({"Content-Length": "-1"})), 400)

    def test_not_a_number(self):
        for text in ("ten", "1x", "+5", "99999999999999999999999"):
            with self.subTest(text):
                self.assertEqual(self.status(lambda f: f.update({"Content-Length": text})), 400)

    def test_empty(self):
        self.assertEqual(self.status(lambda f: f.update({"Content-Length": ""})), 400)

    def test_more_than_s3_takes(self):
        self.assertEqual(self.status(lambda f: f.update({"Content-Length": str(6 << 40)})), 400)


class Expectations(Case):
    def test_continue(self):
        head = head_of("PUT", self.path("k"), lambda f: f.update({"Content-Length": "4", "Expect": "100-continue"}))
        first, last = converse(head, b"body", b"100")
        self.assertIn(b" 100 ", first)
        self.assertIn(b" 200 ", last)
        self.assertEqual(self.read("k"), b"body")

    def test_continue_is_not_said_to_a_refusal(self):
        path = f"/{self.bucket}-none/k"
        head = head_of("PUT", path, lambda f: f.update({"Content-Length": "4", "Expect": "100-continue"}))
        first, _ = converse(head, b"body", b"100")
        self.assertIn(b" 404 ", first)

    def test_continue_is_not_said_to_nobody(self):
        def change(fields):
            fields.pop("Authorization")
            fields.update({"Content-Length": "4", "Expect": "100-continue"})

        first, _ = converse(head_of("PUT", self.path("k"), change), b"body", b"100")
        self.assertIn(b" 403 ", first)

    def test_another_or_none(self):
        for text in ("200", ""):
            with self.subTest(text):
                answer = request("PUT", self.path("k"), b"x", {"Expect": text})
                self.assertIn(answer.status, (200, 417))


class Fields(Case):
    def test_content_type_empty(self):
        self.answered(request("PUT", self.path("k"), b"x", {"Content-Type": ""}), 200)

    def test_content_type_odd(self):
        self.answered(request("PUT", self.path("k"), b"x", {"Content-Type": "text/plain; odd=\"a b\""}), 200)
        self.assertEqual(self.head("k")["ContentType"], 'text/plain; odd="a b"')

    def test_content_type_none(self):
        self.answered(request("PUT", self.path("k"), b"x"), 200)
        self.assertEqual(self.head("k")["ContentType"], "binary/octet-stream")


class Xml(Case):
    def test_not_xml(self):
        for path, query in [(self.path(), "versioning="), (self.path(), "tagging="), (self.path(), "delete=")]:
            with self.subTest(query):
                method = "POST" if query == "delete=" else "PUT"
                self.answered(request(method, path, b"<not", query=query), 400, "MalformedXML")

    def test_entities_are_not_expanded(self):
        levels = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
        body = f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY l0 "ha">{levels}]><Tagging><TagSet><Tag><Key>&l11;</Key><Value>x</Value></Tag></TagSet></Tagging>'
        self.answered(request("PUT", self.path(), body.encode(), query="tagging="), 400, "MalformedXML")

    def test_no_file_is_read(self):
        body = b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><Tagging><TagSet><Tag><Key>&f;</Key><Value>x</Value></Tag></TagSet></Tagging>'
        self.answered(request("PUT", self.path(), body, query="tagging="), 400, "MalformedXML")

    def test_too_much(self):
        body = b"<Delete>" + b"<Object><Key>k</Key></Object>" * 500_000
        answer = request("POST", self.path(), body, query="delete=")
        self.assertIn((answer.status, answer.code), [(400, "MaxMessageLengthExceeded"), (400, "MalformedXML"), (413, "EntityTooLarge")])


class Methods(Case):
    def test_of_the_service(self):
        answer = request("DELETE", "/")
        self.answered(answer, 405, "MethodNotAllowed")

    def test_of_an_object(self):
        answer = request("PATCH", self.path("k"))
        self.assertIn((answer.status, answer.code), [(405, "MethodNotAllowed"), (501, "NotImplemented")])

    def test_subresources_unknown_are_not_taken_for_plainer_operations(self):
        self.put("k", b"kept")
        for method, path in [("PUT", self.path("k")), ("DELETE", self.path("k")), ("DELETE", self.path()), ("PUT", self.path())]:
            with self.subTest(f"{method} {path}"):
                answer = request(method, path, query="legal-hold=")
                self.assertIn(answer.status, (400, 404, 405, 501), answer.body)
        self.assertEqual(self.read("k"), b"kept")

    def test_key_of_bad_utf8(self):
        answer = request("GET", self.path() + "/%FF%FE")
        self.assertIn(answer.status, (400, 404))

    def test_the_connection_goes_on_after_a_refusal(self):
        import http.client

        connection = http.client.HTTPConnection(urlsplit(ENDPOINT).netloc, timeout=60)
        for _ in range(3):
            connection.request("GET", "/")
            response = connection.getresponse()
            self.assertEqual((response.status, b"AccessDenied" in response.read()), (403, True))
        connection.close()
