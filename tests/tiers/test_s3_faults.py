"""What the tier for object stores does when a server or the network fails. No message ever contains a secret."""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import obstore
import pytest
import zstandard

from dataplane.protocol.stored_blocks import BlockForm, BlockName, Encoding, Loaded, Outcome, writer_number
from dataplane.tiers.codecs.decoding import CODECS
from dataplane.tiers.header import pack_header
from dataplane.tiers.registry import ParameterError, TierContext, open_tier
from dataplane.tiers.s3.tier import S3Tier
from dataplane.tiers.tier import BlockLoad, BlockStore, TierError
from dataplane.tiers.values import value_name, value_prefix, value_size
from tests.tiers.blocks import CLUSTER, assert_holds, assert_lacks, block, load, name, soon, store, written_by
from tests.tiers.redis_server import unused_address, wait_until
from tests.tiers.s3_server import BUCKET, S3Server, s3_server
from tests.tiers.shared_faults import MIB, SHORT_S, SharedTierFaults, failure_of
from tests.tiers.tcp_proxy import scripted_server, tcp_proxy

pytestmark = pytest.mark.usefixtures("forked_workers")

SECRET = "wJalrXUtnFEMI/K7MDENG"
KEY_ID = "AKIAIOSFODNN7EXAMPLE"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture
def tiers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Open tiers, which are closed at the end. The secrets are in the environment."""
    monkeypatch.setenv("LARDER_TEST_KEY_ID", KEY_ID)
    monkeypatch.setenv("LARDER_TEST_SECRET", SECRET)
    with ExitStack() as opened:

        def open_one(address: str, identity: bytes = CLUSTER, budget_bytes: int = 0, **more: Any) -> S3Tier:
            parameters = {
                "url": f"s3://{BUCKET}/faults",
                "endpoint": f"http://{address}",
                "region": "us-east-1",
                "connect_timeout_s": 30.0,  # the process that connects may wait for a busy machine
                "credentials": {
                    "access_key_id": "env:LARDER_TEST_KEY_ID",
                    "secret_access_key": "env:LARDER_TEST_SECRET",
                },
                **more,
            }
            tier = open_tier("s3", parameters, TierContext(identity, "node-1", budget_bytes))
            assert isinstance(tier, S3Tier)
            opened.callback(tier.close)
            return tier

        yield open_one


def fails(tier: S3Tier) -> str:
    return failure_of(tier, [SECRET, KEY_ID])


class TestSharedFaults(SharedTierFaults):
    def place(self, number: int) -> dict[str, Any]:
        return {"url": f"s3://{BUCKET}/place-{number}"}


def http(status: str, code: str = "", headers: str = "") -> bytes:
    """Return an answer with an error of S3, which repeats the credentials."""
    body = ""
    if code:
        detail = f"<Message>{SECRET}</Message><AWSAccessKeyId>{KEY_ID}</AWSAccessKeyId>"
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code>{detail}</Error>"
    length = f"Content-Length: {len(body)}\r\nConnection: close\r\n{headers}"
    return f"HTTP/1.1 {status}\r\n{length}\r\n{body}".encode()


def test_a_server_that_is_gone_is_named(tiers: Any) -> None:
    address = unused_address()
    expected = f"s3://{BUCKET}/faults at http://{address}: the server does not answer: the connection is refused"
    assert fails(tiers(address, retries=0)) == expected


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirection_to_another_host_is_not_followed(tiers: Any, status: int) -> None:
    """The library would send the session token there, and take the answer for a block."""
    requested: list[str] = []

    class Redirecting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested.append(self.headers["Host"])
            self.send_response(status)
            self.send_header("Location", f"http://127.0.0.2:{redirecting.server_port}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("0.0.0.0", 0), Redirecting) as redirecting:
        thread = threading.Thread(target=redirecting.serve_forever)
        thread.start()
        try:
            address = f"127.0.0.1:{redirecting.server_port}"
            assert "the server redirects to another address" in fails(tiers(address, retries=0))
        finally:
            redirecting.shutdown()
            thread.join(60)
    assert set(requested) == {address}


def test_a_host_without_an_address_is_named(tiers: Any) -> None:
    assert "the name of the host is not known" in fails(tiers("nowhere.invalid", retries=0))


def test_a_bucket_that_does_not_exist_is_named(tiers: Any, server: S3Server) -> None:
    tier = tiers(server.address, url="s3://no-such-bucket")
    assert f"s3://no-such-bucket at {server.endpoint}: the bucket does not exist" in fails(tier)
    with pytest.raises(TierError, match="the bucket does not exist"):
        load(tier, block(1, 100))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (http("403 Forbidden", "AccessDenied"), "access is denied (AccessDenied)"),
        (http("403 Forbidden", "InvalidAccessKeyId"), "access is denied (InvalidAccessKeyId)"),
        (http("403 Forbidden", "SignatureDoesNotMatch"), "access is denied (SignatureDoesNotMatch)"),
        (http("400 Bad Request", "ExpiredToken"), "access is denied (ExpiredToken)"),
        (http("403 Forbidden"), "access is denied (HTTP 403)"),
        (http("401 Unauthorized"), "access is denied (HTTP 401)"),
        (http("400 Bad Request", "AuthorizationHeaderMalformed"), "the bucket is in another region: set region"),
        (http("301 Moved Permanently", "PermanentRedirect"), "the bucket is in another region: set region"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "the server answers, but not in HTTP"),
        (b"\x00\xff" * 50, "the server answers, but not in HTTP"),
    ],
)
def test_an_answer_that_concerns_all_blocks_is_one_sentence(tiers: Any, answer: bytes, message: str) -> None:
    with scripted_server(answer) as strange:
        assert message in fails(tiers(strange.address, retries=0))


@pytest.mark.parametrize(
    "answer",
    [
        http("503 Slow Down", "SlowDown"),
        http("500 Internal Server Error", "InternalError"),
        http("400 Bad Request", "SomethingElse"),
        http("200 OK", headers="Content-Range: nonsense\r\n"),
        b"",
    ],
)
def test_an_error_of_the_server_fails_the_block_after_the_retries(tiers: Any, answer: bytes) -> None:
    with scripted_server(answer) as strange:
        tier = tiers(strange.address, retries=1)
        assert load(tier, block(1, 100))[0] == Loaded(Outcome.FAILED)
        assert tier.lookup([name(1)], soon()) == [None]
        assert not tier.health(soon()).ok
        if not answer.startswith(b"HTTP/1.1 200"):
            assert store(tier, block(1, 100)) == [Outcome.FAILED]
            assert tier.delete([name(1)], soon()) == [Outcome.FAILED]
    assert tier.usage().blocks == 0


def test_retries_end_at_the_deadline(tiers: Any) -> None:
    with scripted_server(http("503 Slow Down", "SlowDown")) as busy:
        tier = tiers(busy.address, retries=100)
        assert tier.store([block(1, 100)], monotonic() + SHORT_S) == [Outcome.LATE]
        memory = memoryview(bytearray(100))
        assert tier.load([BlockLoad(name(1), memory)], monotonic() + SHORT_S) == [Loaded(Outcome.LATE)]


def test_a_server_without_room_is_full(tiers: Any) -> None:
    with scripted_server(http("507 Insufficient Storage", "XMinioStorageFull")) as full:
        tier = tiers(full.address, retries=0)
        assert store(tier, block(1, 100)) == [Outcome.FULL]
    assert tier.usage().blocks == 0


def test_an_object_that_ends_early_is_not_served(tiers: Any, server: S3Server) -> None:
    with tcp_proxy(server.port) as proxy:
        tier = tiers(proxy.address, retries=0)
        cached = block(1, MIB)
        store(tier, cached)
        proxy.cut_after = MIB // 2
        assert load(tier, cached)[0] == Loaded(Outcome.FAILED)
        proxy.cut_after = None
        assert_holds(tier, [cached])


def test_a_connection_that_is_cut_is_replaced(tiers: Any, server: S3Server) -> None:
    with tcp_proxy(server.port) as proxy:
        tier = tiers(proxy.address)
        cached = block(1, 100_000)
        store(tier, cached)
        proxy.drop()
        assert_holds(tier, [cached])


def test_a_store_that_is_late_gives_the_memory_back(tiers: Any) -> None:
    with scripted_server(b"", stays_open=True) as mute:
        tier = tiers(mute.address)
        stored = block(1, 100_000)
        memory = bytearray(stored.data)
        late = tier.store([stored._replace(data=memoryview(memory))], monotonic() + SHORT_S)
        assert late == [Outcome.LATE]
        wait_until(lambda: _can_be_resized(memory), "the request has dropped the memory")


def _can_be_resized(memory: bytearray) -> bool:
    try:
        memory.append(0)
    except BufferError:
        return False
    return True


def test_credentials_of_a_file_are_read_again_after_a_refusal(tiers: Any, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    with scripted_server(http("403 Forbidden", "ExpiredToken")) as strict:
        references = {"access_key_id": "env:LARDER_TEST_KEY_ID", "secret_access_key": f"file:{file}"}
        tier = tiers(strict.address, retries=0, credentials=references)
        assert f"credentials.secret_access_key: cannot read {file}" in fails(tier)
        file.write_text(SECRET)
        file.chmod(0o644)
        assert "expected mode 0600" in fails(tier)
        file.chmod(0o600)
        assert "access is denied (ExpiredToken)" in fails(tier)
        file.write_text("")
        assert f"credentials.secret_access_key: {file} is empty" in fails(tier)


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"url": "ftp://bucket"}, "url"),
        ({"url": f"s3://user:{SECRET}@bucket"}, "url"),
        ({"endpoint": f"http://user:{SECRET}@host"}, "endpoint"),
        ({"endpoint": "host:9000"}, "endpoint"),
        ({"credentials": {"secret_access_key": SECRET}}, "credentials"),
        ({"url": "gs://bucket", "region": "us-east-1"}, "region"),
        ({"range_bytes": 1}, "range_bytes"),
        ({"connect_timeout_s": 1e308}, "connect_timeout_s"),
        ({"max_in_flight_bytes": 1 << 62}, "max_in_flight_bytes"),
        ({"bucket": "other"}, "bucket"),
    ],
)
def test_a_parameter_that_is_wrong_is_named_and_not_shown(tiers: Any, more: dict[str, Any], field: str) -> None:
    with pytest.raises(ParameterError, match=rf"^{re.escape(field)}\b.*: ") as caught:
        tiers("127.0.0.1:1", **more)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("credentials", [{"account_key": "env:LARDER_TEST_SECRET"}, {"nonsense": "env:HOME"}])
def test_credentials_of_another_cloud_are_refused(tiers: Any, credentials: dict[str, str]) -> None:
    assert "does not exist for this kind of url" in fails(tiers("127.0.0.1:1", credentials=credentials))


@pytest.mark.parametrize(
    ("url", "credentials"),
    [
        ("az://container/prefix", {"account_name": "env:AZURE_NAME", "account_key": "env:AZURE_KEY"}),
        ("gs://bucket/prefix", {"service_account_key": "env:GOOGLE_KEY"}),
    ],
)
def test_other_clouds_are_reached_at_the_endpoint(
    tiers: Any, monkeypatch: pytest.MonkeyPatch, url: str, credentials: dict[str, str]
) -> None:
    """No server here speaks their protocols: this sees that requests reach the endpoint and errors are explained."""
    monkeypatch.setenv("AZURE_NAME", "larder")
    monkeypatch.setenv("AZURE_KEY", "c2VjcmV0LXdKYWxyWFV0bkZFTUk=")
    monkeypatch.setenv(
        "GOOGLE_KEY", '{"disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}'
    )
    with scripted_server(http("403 Forbidden")) as strict:
        tier = tiers(strict.address, url=url, credentials=credentials, region="", retries=0)
        message = fails(tier)
    assert message == f"{url} at http://{strict.address}: access is denied (HTTP 403)"


def test_a_device_or_a_pipe_is_refused_as_certificates(tiers: Any, tmp_path: Path) -> None:
    """It would be read for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in ("/dev/zero", str(pipe)):
        assert f"ca_file: {path}: expected a regular file" in fails(tiers(unused_address(), ca_file=path))


def test_objects_have_the_storage_class_of_the_record(tiers: Any, server: S3Server) -> None:
    with scripted_server(http("503 Slow Down")) as busy:
        store(tiers(busy.address, storage_class="ONEZONE_IA", retries=0), block(1, 100))
    assert b"x-amz-storage-class: ONEZONE_IA\r\n" in busy.received
    tier = tiers(server.address, url=f"s3://{BUCKET}/cold", storage_class="ONEZONE_IA")
    stored = block(1, 100)
    store(tier, stored)
    assert_holds(tier, [stored])


@pytest.mark.parametrize(("virtual_hosted", "path"), [(False, f"/{BUCKET}/faults/larder"), (True, "/faults/larder")])
def test_the_bucket_is_in_the_path_or_in_the_name_of_the_host(tiers: Any, virtual_hosted: bool, path: str) -> None:
    with scripted_server(http("503 Slow Down")) as busy:
        load(tiers(busy.address, virtual_hosted=virtual_hosted, retries=0), block(1, 100))
    assert busy.received.startswith(f"GET {path}/1/".encode())


def test_a_server_with_tls_is_used_if_its_certificate_is_trusted(tiers: Any) -> None:
    with s3_server(tls=True) as server:
        stored = block(1, 100)
        trusting = tiers("", endpoint=server.endpoint, ca_file=str(server.certificate))
        assert store(trusting, stored) == [Outcome.OK]
        assert_holds(trusting, [stored])
        assert "the server's certificate is not trusted" in fails(tiers("", endpoint=server.endpoint, retries=0))


def test_the_budget_bounds_writes_of_a_node(tiers: Any, server: S3Server) -> None:
    tier = tiers(server.address, budget_bytes=2 * value_size(1000))
    stored = [block(number, 1000) for number in range(50, 53)]
    assert store(tier, *stored) == [Outcome.OK, Outcome.OK, Outcome.FULL]
    tier.delete([stored[0].block.name], soon())
    assert store(tier, stored[2]) == [Outcome.OK]


def test_the_budget_counts_earlier_writes_that_were_listed(tiers: Any, server: S3Server) -> None:
    url = f"s3://{BUCKET}/restart"
    store(tiers(server.address, url=url), written_by(block(300, 1000), "node-1"))
    after = tiers(server.address, url=url, budget_bytes=value_size(1000))
    assert len(list(after.blocks(soon()))) == 1
    assert store(after, block(301, 1000)) == [Outcome.FULL]


def test_no_more_bytes_are_read_than_requested(tiers: Any) -> None:
    size = value_size(100)
    lines = (
        "HTTP/1.1 206 Partial Content",
        'ETag: "a"',
        "Last-Modified: Mon, 23 Nov 2026 00:00:00 GMT",
        f"Content-Range: bytes 0-{size - 1}/{size}",
        f"Content-Length: {1 << 62}",
    )
    answer = "\r\n".join(lines).encode() + b"\r\n\r\n" + b"x" * (2 * size)
    with scripted_server(answer, endless=True) as endless:
        tier = tiers(endless.address, retries=0)
        assert load(tier, block(1, 100)) == (Loaded(Outcome.FAILED), bytes(100))


def _endless_list(key: str) -> bytes:
    """Return an answer with one object, which says that more follow."""
    body = (
        "<?xml version='1.0'?><ListBucketResult><IsTruncated>true</IsTruncated>"
        "<NextContinuationToken>again</NextContinuationToken><Contents>"
        f"<Key>faults/{key}</Key><Size>1</Size><ETag>a</ETag>"
        "<LastModified>2026-11-23T00:00:00.000Z</LastModified></Contents></ListBucketResult>"
    )
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


def test_a_list_that_repeats_is_given_up(tiers: Any) -> None:
    with scripted_server(_endless_list(value_name(CLUSTER, name(1)))) as endless:
        tier = tiers(endless.address, retries=0)
        with pytest.raises(TierError, match="the list of objects repeats"):
            list(tier.blocks(soon()))
        assert tier.usage().blocks == 0


def test_an_endless_listing_without_blocks_is_stopped(tiers: Any) -> None:
    """A fast machine reads a whole page before the deadline, and sees that it repeats."""
    with scripted_server(_endless_list(value_prefix(CLUSTER) + "not a block")) as endless:
        tier = tiers(endless.address, retries=0)
        with pytest.raises(TierError, match=r"no answer by the deadline|the list of objects repeats"):
            list(tier.blocks(monotonic() + 2 * SHORT_S))


def test_an_object_that_claims_to_be_larger_than_its_block_is_not_decoded(tiers: Any, server: S3Server) -> None:
    """The header is valid: whoever writes to the bucket can make one."""
    tier = tiers(server.address, url=f"s3://{BUCKET}/bombs")
    cached = block(1, 4096)
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 24))
    half = CODECS["zstd"].encode(cached.data, BlockForm("bfloat16"))
    objects = {
        "bomb": (Encoding(1, 2, 0, len(bomb)), bomb),
        "unknown codec": (Encoding(9, 2, 0, half.encoding.nbytes), half.data),
        "fp8 of other sizes": (Encoding(2, 1, 128, half.encoding.nbytes), half.data),
        "fewer bytes than it says": (half.encoding._replace(nbytes=4000), half.data),
        "more bytes than it says": (half.encoding._replace(nbytes=10), half.data),
        "bytes behind the frame": (half.encoding._replace(nbytes=half.encoding.nbytes + 9), half.data + b"x" * 9),
    }
    for what, (encoding, data) in objects.items():
        value = pack_header(cached.block, CLUSTER, encoding) + bytes(data)
        obstore.put(server.store("bombs"), value_name(CLUSTER, cached.block.name), value)
        assert load(tier, cached)[0] == Loaded(Outcome.CORRUPT), what
        assert_lacks(tier, [cached])
    assert tier.usage().corrupt_blocks == len(objects)


def test_an_object_of_a_size_that_no_block_has_is_not_listed(tiers: Any, server: S3Server) -> None:
    tier = tiers(server.address, url=f"s3://{BUCKET}/sizes")
    for number, length in enumerate((1 << 41, (1 << 64) - 1)):
        claimed = msgspec.structs.replace(block(number, 16).block, length=length)
        value = pack_header(claimed, CLUSTER, Encoding(1, 2, 0, 16)) + bytes(16)
        obstore.put(server.store("sizes"), value_name(CLUSTER, claimed.name), value)
    assert list(tier.blocks(soon())) == []


def test_an_object_of_another_size_than_its_header_states_is_not_counted(tiers: Any, server: S3Server) -> None:
    """Whoever writes to the bucket can make a header with the number of this node."""
    tier = tiers(server.address, url=f"s3://{BUCKET}/claims")
    own = msgspec.structs.replace(block(1, 4096).block, writer=writer_number("node-1"))
    large, small, packed = (
        msgspec.structs.replace(block(number, 16).block, length=length, writer=own.writer)
        for number, length in ((2, 1 << 30), (3, 16), (4, 1 << 30))
    )
    forged = [(large, None, 0), (small, None, 1000), (packed, Encoding(1, 2, 0, 1 << 29), 16)]
    for stored, encoding, size in ((own, None, 4096), *forged):
        value = pack_header(stored, CLUSTER, encoding) + bytes(size)
        obstore.put(server.store("claims"), value_name(CLUSTER, stored.name), value)
    other_space = BlockName(b"o" * 16, own.name.key)
    for path, value in (
        (value_name(CLUSTER, other_space), pack_header(own, CLUSTER) + bytes(4096)),
        (value_name(CLUSTER, block(5, 16).block.name), b"short"),
    ):
        obstore.put(server.store("claims"), path, value)
    assert [each.name for each in tier.blocks(soon())] == [own.name]
    assert (tier.usage().blocks, tier.usage().stored_bytes) == (1, value_size(4096))


def test_a_block_that_shrinks_behind_the_tier_is_read_as_one_version(tiers: Any, server: S3Server) -> None:
    """Ranges behind the end of an encoded block are empty; the parts are those of one object."""
    tier = tiers(server.address, url=f"s3://{BUCKET}/ranges", range_bytes=4096)
    plain = block(1, 100_000)
    assert store(tier, plain) == [Outcome.OK]
    assert_holds(tier, [plain])
    encoding, data = CODECS["zstd"].encode(plain.data, BlockForm("bfloat16"))
    assert store(tier, BlockStore(plain.block, data, encoding)) == [Outcome.OK]
    assert_holds(tier, [plain])
    assert tier.usage().stored_bytes == value_size(encoding.nbytes) < 90_000


def test_an_encoding_that_is_not_smaller_is_not_stored(tiers: Any, server: S3Server) -> None:
    tier = tiers(server.address, url=f"s3://{BUCKET}/no-smaller")
    cached = block(1, 100)
    for data, nbytes in ((bytes(101), 101), (bytes(50), 49)):
        assert store(tier, BlockStore(cached.block, data, Encoding(1, 1, 0, nbytes))) == [Outcome.FAILED]
    assert_lacks(tier, [cached])
