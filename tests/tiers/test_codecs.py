"""Codecs: what they promise of any block, and what they refuse to decode."""

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dataplane.base.dtypes import ITEM_BYTES
from dataplane.protocol.stored_blocks import BlockForm, Encoding
from dataplane.tiers.codecs.codec import DecodeError, EncodedBlock, NotEncoded
from dataplane.tiers.codecs.decoding import CODECS

ZSTD, FP8 = CODECS["zstd"], CODECS["fp8"]
HEAD = 64
FLOATS = ("bfloat16", "float16", "float32")


def as_bytes(values: np.ndarray, dtype: str) -> bytes:
    """Return float32 values as bytes of the type, rounded towards zero for bfloat16."""
    values = values.astype(np.float32)
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return values.astype(dtype).tobytes()


def as_values(data: bytes | bytearray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, dtype).astype(np.float32)


def decoded(name: str, encoded: EncodedBlock, nbytes: int) -> bytearray:
    into = bytearray(nbytes)
    CODECS[name].decode(encoded.encoding, encoded.data, memoryview(into))
    return into


def normal(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


class TestZstd:
    @pytest.mark.parametrize("dtype", ["", "uint8", "bfloat16", "float32", "float64", "no such type"])
    @pytest.mark.parametrize("nbytes", [1000, 4096, 4097, 70_003])
    def test_a_block_comes_back(self, dtype: str, nbytes: int) -> None:
        data = as_bytes(normal(nbytes), "bfloat16")[:nbytes]
        encoded = ZSTD.encode(data, BlockForm(dtype))
        assert encoded.encoding.nbytes == len(encoded.data) < nbytes
        assert decoded("zstd", encoded, nbytes) == data

    def test_byte_planes_of_elements_compress_better(self) -> None:
        data = as_bytes(normal(1 << 19), "bfloat16")
        apart = ZSTD.encode(data, BlockForm("bfloat16")).encoding.nbytes
        assert apart < 0.7 * len(data)
        assert apart < ZSTD.encode(data, BlockForm()).encoding.nbytes

    @pytest.mark.parametrize("nbytes", [0, 1, 10, 100_000])
    def test_incompressible_blocks_are_not_encoded(self, nbytes: int) -> None:
        with pytest.raises(NotEncoded, match="size"):
            ZSTD.encode(np.random.default_rng(0).bytes(nbytes), BlockForm("bfloat16"))

    def test_a_frame_of_another_size_is_refused_before_memory_is_taken(self) -> None:
        bomb = zstandard.ZstdCompressor().compress(bytes(1 << 26))
        assert len(bomb) < 10_000
        for nbytes in (1 << 20, (1 << 26) - 1):
            with pytest.raises(DecodeError, match=f"expected a frame of {nbytes} bytes, got {1 << 26}"):
                decoded("zstd", EncodedBlock(Encoding(1, 2, 0, len(bomb)), bomb), nbytes)

    def test_a_frame_that_wants_a_large_window_is_refused(self) -> None:
        parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=True)
        writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj(size=1 << 28)
        start = writer.compress(bytes(1000)) + writer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        header = bytearray(start)
        found = zstandard.get_frame_parameters(bytes(header))
        assert (found.content_size, found.window_size) == (1 << 28, 1 << 27)
        at = bytes(header).index((1 << 28).to_bytes(4, "little"))
        header[at : at + 4] = (4096).to_bytes(4, "little")
        assert zstandard.get_frame_parameters(bytes(header)).content_size == 4096
        with pytest.raises(DecodeError, match=f"with a window of {1 << 27}"):
            decoded("zstd", EncodedBlock(Encoding(1, 2, 0, len(header)), bytes(header)), 4096)

    def test_a_frame_without_its_size_is_refused(self) -> None:
        parameters = zstandard.ZstdCompressionParameters(write_content_size=False)
        frame = zstandard.ZstdCompressor(compression_params=parameters).compress(bytes(4096))
        with pytest.raises(DecodeError, match="expected a frame of 4096 bytes"):
            decoded("zstd", EncodedBlock(Encoding(1, 2, 0, len(frame)), frame), 4096)

    @pytest.mark.parametrize("change", ["trailing", "second frame", "cut", "flipped", "empty", "noise"])
    def test_a_damaged_frame_is_refused(self, change: str) -> None:
        data = as_bytes(normal(2048), "bfloat16")
        frame = bytes(ZSTD.encode(data, BlockForm("bfloat16")).data)
        flipped = bytearray(frame)
        flipped[4] ^= 0x08  # a reserved bit of the frame's header
        damaged = {
            "trailing": frame + b"\0",
            "second frame": frame + frame,
            "cut": frame[:-1],
            "flipped": bytes(flipped),
            "empty": b"",
            "noise": np.random.default_rng(0).bytes(500),
        }[change]
        with pytest.raises(DecodeError):
            decoded("zstd", EncodedBlock(Encoding(1, 2, 0, len(damaged)), damaged), len(data))

    @pytest.mark.parametrize(("element", "group"), [(0, 0), (3, 0), (255, 0), (2, 1)])
    def test_an_encoding_that_does_not_exist_is_refused(self, element: int, group: int) -> None:
        data = as_bytes(normal(2048), "bfloat16")
        encoding, frame = ZSTD.encode(data, BlockForm("bfloat16"))
        with pytest.raises(DecodeError):
            decoded("zstd", EncodedBlock(encoding._replace(element=element, group=group), frame), len(data))


def outliers(seed: int) -> np.ndarray:
    """Return values of which a few channels are much larger than the others, as in keys."""
    values = normal(256 * HEAD, seed).reshape(-1, HEAD)
    values[:, 7] *= 60
    values[:, [20, 41]] *= 20
    return values.ravel()


SAMPLES = {
    "normal": normal(256 * HEAD),
    "outliers": outliers(1),
    "tiny": normal(256 * HEAD) * 1e-6,
    "large": normal(256 * HEAD) * 8000,
}


class TestFp8:
    @pytest.mark.parametrize("dtype", FLOATS)
    @pytest.mark.parametrize("what", SAMPLES)
    def test_the_error_is_bounded(self, dtype: str, what: str) -> None:
        values = SAMPLES[what]
        data = as_bytes(values, dtype)
        encoded = FP8.encode(data, BlockForm(dtype, HEAD))
        assert encoded.encoding.nbytes == len(values) + len(values) // HEAD
        before, after = as_values(data, dtype), as_values(decoded("fp8", encoded, len(data)), dtype)
        largest = np.abs(before).reshape(-1, HEAD).max(axis=1)
        scale = np.exp2(np.ceil(np.log2(largest / 448)))[:, None]
        allowed = np.maximum(np.abs(before).reshape(-1, HEAD) / 16, scale * 2.0**-10)
        smallest = 2.0**-24 if dtype == "float16" else 0.0  # float16 has no smaller values
        assert (np.abs(after - before).reshape(-1, HEAD) <= allowed * 1.0001 + smallest).all()
        cosine = (before.astype(float) @ after) / (np.linalg.norm(before) * np.linalg.norm(after))
        assert cosine > 0.999

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_encoding_decoded_values_again_changes_nothing(self, dtype: str) -> None:
        data = as_bytes(outliers(2), dtype)
        once = decoded("fp8", FP8.encode(data, BlockForm(dtype, HEAD)), len(data))
        assert decoded("fp8", FP8.encode(once, BlockForm(dtype, HEAD)), len(data)) == once

    @given(st.lists(st.integers(0, 0x7BFF) | st.integers(0x8000, 0xFBFF), min_size=8, max_size=8))
    def test_any_finite_value_stays_finite_and_keeps_its_sign(self, bits: list[int]) -> None:
        """The bits are those of the finite values of float16."""
        values = np.array(bits, np.uint16).view(np.float16)
        data = values.tobytes()
        after = np.frombuffer(decoded("fp8", FP8.encode(data, BlockForm("float16", 4)), len(data)), np.float16)
        assert np.isfinite(after).all()
        assert ((np.sign(after) == np.sign(values)) | (after == 0)).all()

    def test_the_nearest_code_is_chosen(self) -> None:
        """Every value between two neighbours becomes the nearer one; in the middle, the even one."""
        codes = np.arange(127, dtype=np.uint8)
        exponent, mantissa = codes >> 3, codes & 7
        grid = np.where(exponent > 0, (8.0 + mantissa), mantissa) * np.exp2(np.maximum(exponent, 1) - 10.0)
        between = np.concatenate([grid[:-1] + part * np.diff(grid) for part in (0.25, 0.5, 0.75)])
        expected = np.concatenate([codes[:-1], codes[:-1] + codes[:-1] % 2, codes[1:]])
        rows = np.stack([between, np.full(len(between), 448.0)], axis=1).astype(np.float32)
        encoded = FP8.encode(rows.tobytes(), BlockForm("float32", 2))
        stored = np.frombuffer(encoded.data, np.uint8)[len(rows) :].reshape(-1, 2)
        assert (stored[:, 0] == expected).all()
        assert (stored[:, 1] == 126).all()

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_values_that_are_not_finite_are_not_encoded(self, value: float) -> None:
        values = normal(4 * HEAD)
        values[100] = value
        with pytest.raises(NotEncoded, match="values"):
            FP8.encode(as_bytes(values, "float32"), BlockForm("float32", HEAD))

    @pytest.mark.parametrize(
        ("form", "reason"),
        [
            (BlockForm("", HEAD), "dtype"),
            (BlockForm("float8_e4m3fn", HEAD), "dtype"),
            (BlockForm("int16", HEAD), "dtype"),
            (BlockForm("bfloat16"), "heads"),
            (BlockForm("bfloat16", 60), "heads"),
            (BlockForm("bfloat16", 1 << 20), "heads"),
            (BlockForm("bfloat16", 1), "size"),
        ],
    )
    def test_a_block_of_unknown_form_is_not_encoded(self, form: BlockForm, reason: str) -> None:
        with pytest.raises(NotEncoded, match=reason):
            FP8.encode(as_bytes(normal(4 * HEAD), "bfloat16"), form)

    @pytest.mark.parametrize(
        "change",
        [
            {"element": 0},
            {"element": 4},
            {"element": 3},
            {"group": 0},
            {"group": HEAD // 2},
            {"group": 60},
            {"group": 65_535},
        ],
    )
    def test_sizes_that_contradict_each_other_are_refused(self, change: dict[str, int]) -> None:
        data = as_bytes(normal(4 * HEAD), "bfloat16")
        encoding, encoded = FP8.encode(data, BlockForm("bfloat16", HEAD))
        with pytest.raises(DecodeError):
            decoded("fp8", EncodedBlock(encoding._replace(**change), encoded), len(data))

    def test_any_bytes_of_the_right_size_decode_to_finite_values_or_are_refused(self) -> None:
        encoding = FP8.encode(as_bytes(normal(4 * HEAD), "bfloat16"), BlockForm("bfloat16", HEAD)).encoding
        refused = 0
        for seed in range(200):
            noise = np.random.default_rng(seed).bytes(encoding.nbytes)
            try:
                into = decoded("fp8", EncodedBlock(encoding, noise), 4 * HEAD * ITEM_BYTES["bfloat16"])
            except DecodeError:
                refused += 1
                continue
            assert np.isfinite(as_values(into, "bfloat16")).all()
        assert 0 < refused < 200
