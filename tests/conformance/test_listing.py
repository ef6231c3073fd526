"""Listings of objects, in both versions of the operation."""

from support import S3, Case, etag, request, seconds


class Listings:
    """Tests that both versions share."""

    def list(self, **arguments):
        raise NotImplementedError

    def names(self, page):
        return [o["Key"] for o in page.get("Contents", [])]

    def groups(self, page):
        return [p["Prefix"] for p in page.get("CommonPrefixes", [])]

    def seen(self, keys, groups, **arguments):
        page = self.list(**arguments)
        self.assertEqual((self.names(page), self.groups(page)), (keys, groups))
        return page

    def walk(self, size, **arguments):
        """All pages of `size`: keys, groups, and how many on each page."""
        keys, groups, counts, more = [], [], [], {}
        while True:
            page = self.list(MaxKeys=size, **arguments, **more)
            names, prefixes = self.names(page), self.groups(page)
            keys += names
            groups += prefixes
            counts.append(len(names) + len(prefixes))
            if not page["IsTruncated"]:
                return keys, groups, counts
            more = self.next(page)

    def test_empty_bucket(self):
        page = self.seen([], [])
        self.assertFalse(page["IsTruncated"])
        self.assertEqual(page["Name"], self.bucket)

    def test_many_in_pages(self):
        keys = [f"k{i:02}" for i in range(10)]
        self.keys(*reversed(keys))
        self.assertEqual(self.walk(3), (keys, [], [3, 3, 3, 1]))

    def test_pages_that_end_exactly(self):
        self.keys("a", "b", "c", "d")
        self.assertEqual(self.walk(2), (["a", "b", "c", "d"], [], [2, 2]))

    def test_ascending_bytes_not_letters(self):
        keys = ["B", "a", "b", "\u00e9", "\uffee", "\U0001f600", "Z", "-", "~"]
        self.keys(*keys)
        self.seen(sorted(keys, key=str.encode), [])

    def test_what_is_told_of_an_object(self):
        self.put("one", b"content")
        entry = self.list()["Contents"][0]
        head = self.head("one")
        self.assertEqual(
            (entry["Key"], entry["ETag"], entry["Size"], entry["StorageClass"], seconds(entry["LastModified"])),
            ("one", etag(b"content"), 7, "STANDARD", head["LastModified"]),
        )

    def test_buckets_do_not_mix(self):
        other = self.new_bucket()
        self.keys("mine")
        S3.put_object(Bucket=other, Key="theirs", Body=b"")
        self.seen(["mine"], [])

    def test_max_keys_of_one(self):
        self.keys("a", "b")
        page = self.seen(["a"], [], MaxKeys=1)
        self.assertTrue(page["IsTruncated"])

    def test_max_keys_of_zero(self):
        self.keys("a")
        page = self.seen([], [], MaxKeys=0)
        self.assertFalse(page["IsTruncated"])

    def test_max_keys_is_a_thousand_by_default(self):
        self.assertEqual(self.list()["MaxKeys"], 1000)

    def test_max_keys_that_is_no_number(self):
        answer = request("GET", self.path(), query=self.type + "max-keys=blah")
        self.answered(answer, 400, "InvalidArgument")

    def test_max_keys_that_is_negative(self):
        answer = request("GET", self.path(), query=self.type + "max-keys=-1")
        self.answered(answer, 400, "InvalidArgument")

    def test_more_than_a_thousand(self):
        self.keys(*(f"{i:04}" for i in range(1003)))
        page = self.list(MaxKeys=2000)
        self.assertEqual((len(self.names(page)), page["IsTruncated"]), (1000, True))
        rest = self.list(**self.next(page))
        self.assertEqual((self.names(rest), rest["IsTruncated"]), (["1000", "1001", "1002"], False))

    def test_delimiter(self):
        self.keys("asdf", "foo/bar", "foo/baz/xyzzy", "quux/thud", "quux2")
        page = self.seen(["asdf", "quux2"], ["foo/", "quux/"], Delimiter="/")
        self.assertEqual(page["Delimiter"], "/")

    def test_delimiter_and_prefix(self):
        self.keys("foo/bar", "foo/baz/xyzzy", "foo/baz/2", "quux")
        page = self.seen(["foo/bar"], ["foo/baz/"], Delimiter="/", Prefix="foo/")
        self.assertEqual(page["Prefix"], "foo/")

    def test_delimiter_in_pages_counts_groups(self):
        self.keys("a/1", "a/2", "b", "c/1", "c/2", "d", "e/1")
        self.assertEqual(self.walk(2, Delimiter="/"), (["b", "d"], ["a/", "c/", "e/"], [2, 2, 1]))

    def test_delimiter_in_pages_of_one_tells_a_group_once(self):
        self.keys(*(f"g/{i}" for i in range(5)), "h")
        self.assertEqual(self.walk(1, Delimiter="/"), (["h"], ["g/"], [1, 1]))

    def test_delimiter_a_letter(self):
        self.keys("bar", "baz", "cab", "foo")
        self.seen(["foo"], ["ba", "ca"], Delimiter="a")

    def test_delimiter_a_percent(self):
        self.keys("b%ar", "b%az", "c%ab", "foo")
        self.seen(["foo"], ["b%", "c%"], Delimiter="%")

    def test_delimiter_a_space(self):
        self.keys("b ar", "b az", "c ab", "foo")
        self.seen(["foo"], ["b ", "c "], Delimiter=" ")

    def test_delimiter_a_dot(self):
        self.keys("b.ar", "b.az", "c.ab", "foo")
        self.seen(["foo"], ["b.", "c."], Delimiter=".")

    def test_delimiter_of_two_characters(self):
        self.keys("a--b", "a-c", "d--e")
        self.seen(["a-c"], ["a--", "d--"], Delimiter="--")

    def test_delimiter_that_cannot_be_printed(self):
        self.keys("b\nar", "b\naz", "foo")
        self.seen(["foo"], ["b\n"], Delimiter="\n")

    def test_delimiter_that_is_empty(self):
        self.keys("bar", "foo/x")
        page = self.seen(["bar", "foo/x"], [], Delimiter="")
        self.assertNotIn("CommonPrefixes", page)

    def test_delimiter_that_no_key_has(self):
        self.keys("bar", "foo")
        self.seen(["bar", "foo"], [], Delimiter="/")

    def test_delimiter_at_the_end_of_the_prefix(self):
        self.keys("asdf/")
        self.seen(["asdf/"], [], Delimiter="/", Prefix="asdf/")

    def test_delimiter_within_the_prefix(self):
        self.keys("a_b_c/1", "a_b_c/2/x", "a_z")
        self.seen(["a_b_c/1"], ["a_b_c/2/"], Delimiter="/", Prefix="a_b_c/")

    def test_delimiter_of_prefix_with_underscore(self):
        self.keys("_obj1_", "_under1/bar", "_under1/baz/xyzzy", "_under2/thud")
        self.seen(["_obj1_"], ["_under1/", "_under2/"], Delimiter="/")
        self.seen(["_under1/bar"], ["_under1/baz/"], Delimiter="/", Prefix="_under1/")

    def test_special_names_are_not_skipped(self):
        keys = ["0/", *(f"0/{i}" for i in range(1000, 1003)), "1999", "1999#", "1999+", "2000"]
        self.keys(*keys)
        self.seen(["1999", "1999#", "1999+", "2000"], ["0/"], Delimiter="/")

    def test_prefix(self):
        self.keys("foo/bar", "foo/baz", "quux")
        self.seen(["foo/bar", "foo/baz"], [], Prefix="foo/")

    def test_prefix_that_is_no_folder(self):
        self.keys("bar", "baz", "foo")
        self.seen(["bar", "baz"], [], Prefix="ba")

    def test_prefix_that_is_empty(self):
        self.keys("foo/bar", "quux")
        self.seen(["foo/bar", "quux"], [], Prefix="")

    def test_prefix_that_no_key_has(self):
        self.keys("foo/bar")
        self.seen([], [], Prefix="d")

    def test_prefix_that_cannot_be_printed(self):
        self.keys("\nfoo", "foo")
        self.seen(["\nfoo"], [], Prefix="\n")

    def test_prefix_and_delimiter_that_is_a_letter(self):
        self.keys("bar", "bazar", "cab", "foo")
        self.seen(["bar"], ["baza"], Prefix="ba", Delimiter="a")

    def test_prefix_without_a_key_and_delimiter(self):
        self.keys("b/a/r", "b/a/c", "b/a/g", "g")
        self.seen([], [], Prefix="y", Delimiter="/")

    def test_prefix_and_delimiter_without_a_group(self):
        self.keys("b/a/c", "b/a/g", "b/a/r", "g")
        self.seen(["b/a/c", "b/a/g", "b/a/r"], [], Prefix="b", Delimiter="z")

    def test_prefix_special(self):
        self.keys("_bla/1", "_bla/2", "abcd")
        self.seen(["_bla/1", "_bla/2"], [], Prefix="_bla/")

    def test_encoding_type(self):
        keys = ["a b", "a+b", "c/d%", "e\u00e9"]
        self.keys(*keys)
        answer = request("GET", self.path(), query=self.type + "encoding-type=url")
        self.assertEqual(answer.text("EncodingType"), "url")
        for part in (b"<Key>a%20b</Key>", b"<Key>a%2Bb</Key>", b"<Key>c/d%25</Key>", b"<Key>e%C3%A9</Key>"):
            self.assertIn(part, answer.body)
        self.seen(sorted(keys, key=str.encode), [])

    def test_encoding_type_unknown(self):
        answer = request("GET", self.path(), query=self.type + "encoding-type=base64")
        self.answered(answer, 400, "InvalidArgument")

    def test_keys_with_all_sorts_of_characters(self):
        keys = ["'quoted'", '"double"', "<tag>&amp;", "a=b&c", "tab\there", "\u65e5\u672c", "x?y", "z#w", "..a", "a//b", "%2F"]
        self.keys(*keys)
        self.seen(sorted(keys, key=str.encode), [])
        for key in keys:
            with self.subTest(key):
                self.assertEqual(self.read(key), key.encode())

    def test_anonymous(self):
        answer = request("GET", self.path(), query=self.type.rstrip("&"), signed=False)
        self.answered(answer, 403, "AccessDenied")


class Version1(Listings, Case):
    type = ""

    def list(self, **arguments):
        return S3.list_objects(Bucket=self.bucket, **arguments)

    def next(self, page):
        """As the SDKs do: NextMarker is there only with a delimiter."""
        return {"Marker": page.get("NextMarker") or page["Contents"][-1]["Key"]}

    def test_marker(self):
        self.keys("a", "b", "c")
        page = self.seen(["c"], [], Marker="b")
        self.assertEqual(page["Marker"], "b")

    def test_marker_that_is_no_key(self):
        self.keys("bar", "foo", "quxx")
        self.seen(["foo", "quxx"], [], Marker="blah")

    def test_marker_behind_all(self):
        self.keys("bar", "foo")
        page = self.seen([], [], Marker="zzz")
        self.assertFalse(page["IsTruncated"])

    def test_marker_that_is_empty(self):
        self.keys("bar", "foo")
        self.seen(["bar", "foo"], [], Marker="")

    def test_marker_that_cannot_be_printed(self):
        self.keys("bar", "foo")
        self.seen(["bar", "foo"], [], Marker="\n")

    def test_marker_within_a_group(self):
        self.keys("a/1", "a/2", "b/1")
        self.seen([], ["b/"], Marker="a/", Delimiter="/")

    def test_next_marker(self):
        self.keys("a", "b/1", "b/2", "c")
        self.assertEqual(self.list(MaxKeys=1, Delimiter="/")["NextMarker"], "a")
        self.assertEqual(self.list(MaxKeys=2, Delimiter="/")["NextMarker"], "b/")
        # S3 gives it with a delimiter only; it does no harm otherwise, if it is right.
        self.assertEqual(self.list(MaxKeys=1).get("NextMarker", "a"), "a")
        self.assertNotIn("NextMarker", self.list())

    def test_owner_is_told(self):
        self.keys("a")
        self.assertEqual(self.list()["Contents"][0]["Owner"]["ID"], S3.list_buckets()["Owner"]["ID"])


class Version2(Listings, Case):
    type = "list-type=2&"

    def list(self, **arguments):
        return S3.list_objects_v2(Bucket=self.bucket, **arguments)

    def next(self, page):
        return {"ContinuationToken": page["NextContinuationToken"]}

    def test_key_count(self):
        self.keys("a", "b/1", "b/2", "c")
        self.assertEqual(self.list()["KeyCount"], 4)
        self.assertEqual(self.list(Delimiter="/")["KeyCount"], 3)

    def test_token_comes_back(self):
        self.keys("a", "b")
        token = self.list(MaxKeys=1)["NextContinuationToken"]
        page = self.seen(["b"], [], ContinuationToken=token)
        self.assertEqual(page["ContinuationToken"], token)
        self.assertNotIn("NextContinuationToken", page)

    def test_token_that_is_empty(self):
        self.keys("a", "b")
        page = self.seen(["a", "b"], [], ContinuationToken="")
        self.assertEqual(page["ContinuationToken"], "")

    def test_token_that_is_none(self):
        self.refused(400, "InvalidArgument", S3.list_objects_v2, Bucket=self.bucket, ContinuationToken="***")

    def test_start_after(self):
        self.keys("a", "b", "c")
        page = self.seen(["c"], [], StartAfter="b")
        self.assertEqual(page["StartAfter"], "b")

    def test_start_after_that_is_no_key(self):
        self.keys("bar", "foo", "quxx")
        self.seen(["foo", "quxx"], [], StartAfter="blah")

    def test_start_after_all(self):
        self.keys("bar", "foo")
        page = self.seen([], [], StartAfter="zzz")
        self.assertFalse(page["IsTruncated"])

    def test_start_after_that_cannot_be_printed(self):
        self.keys("bar", "foo")
        self.seen(["bar", "foo"], [], StartAfter="\n")

    def test_token_wins_over_start_after(self):
        self.keys("bar", "baz", "foo", "quxx")
        page = self.list(StartAfter="bar", MaxKeys=1)
        self.assertEqual(self.names(page), ["baz"])
        rest = self.list(StartAfter="bar", ContinuationToken=page["NextContinuationToken"])
        self.assertEqual((self.names(rest), rest["IsTruncated"]), (["foo", "quxx"], False))

    def test_no_owner_by_default(self):
        self.keys("a")
        self.assertNotIn("Owner", self.list()["Contents"][0])

    def test_no_owner_when_not_wanted(self):
        self.keys("a")
        self.assertNotIn("Owner", self.list(FetchOwner=False)["Contents"][0])

    def test_owner_when_wanted(self):
        self.keys("a")
        self.assertEqual(self.list(FetchOwner=True)["Contents"][0]["Owner"]["ID"], S3.list_buckets()["Owner"]["ID"])


del Listings
