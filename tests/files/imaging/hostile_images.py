"""Image files that nobody sends by accident, made by code: name -> content. Each is small; none is a real attack tool.

Every one has to give an image or an `ImageError`, within the bounds.
"""

import io
import struct
import zlib

import numpy as np
from PIL import Image

TWO_BYTES = "\u00e9"
SHARES = (0.02, 0.1, 0.3, 0.5, 0.8, 0.95, 0.999)


def encoded(image, form, **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def noise(rng, shape=(24, 30, 3)):
    return Image.fromarray(rng.integers(0, 256, shape).astype(np.uint8))


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(*extra, size=(8, 8), depth=8, colour=2, data=None, after=(), interlace=0):
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(colour, 3)
    rows = b"\0" * ((size[0] * channels * depth + 7) // 8 + 1) * size[1] if data is None else data
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", *size, depth, colour, 0, 0, interlace))
    body = b"".join(extra) + chunk(b"IDAT", zlib.compress(rows)) + b"".join(after)
    return b"\x89PNG\r\n\x1a\n" + header + body + chunk(b"IEND", b"")


def text_chunks(key, text):
    """A text in the three chunks that PNG has for it."""
    key = key.encode()
    yield "tEXt", chunk(b"tEXt", key + b"\0" + text.encode("latin-1", "replace"))
    yield "zTXt", chunk(b"zTXt", key + b"\0\0" + zlib.compress(text.encode("latin-1", "replace")))
    yield "iTXt", chunk(b"iTXt", key + b"\0\1\0\0\0" + zlib.compress(text.encode()))


def png_files(rng):
    keys = (
        "comment", "transparency", "exif", "icc_profile", "xmp", "dpi", "gamma", "background", "duration", "loop",
        "interlace", "progressive", "quality", "Raw profile type exif", "XML:com.adobe.xmp",
    )  # fmt: skip
    for key in keys:
        for kind, made in text_chunks(key, TWO_BYTES * 32_767):
            yield f"{kind} {key}", png(made)
    for length in (1, 32_766, 32_768, 65_534, 400_000):
        yield f"comment of {length}", png(next(made for kind, made in text_chunks("comment", "a" * length)))
        yield f"compressed comment of {length}", png(list(text_chunks("comment", TWO_BYTES * length))[2][1])
    bomb = chunk(b"zTXt", b"c\0\0" + zlib.compress(b"a" * 2**24))
    yield "text bomb", png(bomb)
    yield "fifty text bombs", png(*[bomb] * 50)
    yield "text bombs after the pixels", png(after=[bomb] * 20)
    yield "thousands of texts", png(*[chunk(b"tEXt", b"k%d\0v" % i) for i in range(20_000)])
    yield "too many chunks", png(*[chunk(b"tEXt", b"k\0v")] * 70_000)
    yield "empty data chunks", png(*[chunk(b"IDAT", b"")] * 5000)
    yield "profile bomb", png(chunk(b"iCCP", b"p\0\0" + zlib.compress(b"\0" * 2**24)))
    yield "exif loop", png(chunk(b"eXIf", exif_loop()))
    yield "exif of nothing", png(chunk(b"eXIf", b""))
    yield "exif of lies", png(chunk(b"eXIf", b"MM\0*\xff\xff\xff\xff"))
    yield "animation of many frames", png(chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0)))
    frames = [chunk(b"fcTL", struct.pack(">IIIIIHHBB", i, 8, 8, 0, 0, 1, 1, 0, 0)) for i in range(3000)]
    yield "frame headers", png(chunk(b"acTL", struct.pack(">II", 3000, 0)), *frames)
    for colour in (0, 2, 3, 4, 6):
        for alphas in (b"", b"\0", b"\0\1\0\2\0\3", b"\xff" * 300):
            palette = [chunk(b"PLTE", bytes(range(256)) * 3)] if colour == 3 else []
            yield f"tRNS of {len(alphas)} for {colour}", png(*palette, chunk(b"tRNS", alphas), colour=colour)
    yield "transparent colour of sixteen bits", png(chunk(b"tRNS", b"\xff" * 6), depth=16)
    yield "no palette", png(colour=3)
    yield "palette of five bytes", png(chunk(b"PLTE", b"12345"), colour=3)
    yield "palette of nothing", png(chunk(b"PLTE", b""), colour=3)
    yield "palette too long", png(chunk(b"PLTE", b"\1" * 3000), colour=3)
    for depth, colour in ((3, 2), (16, 3), (32, 0), (0, 0), (8, 9), (255, 255)):
        yield f"depth {depth} colour {colour}", png(depth=depth, colour=colour, data=b"\0" * 999)
    for size in ((0, 0), (0, 9), (9, 0), (2**31 - 1, 1), (1, 2**32 - 1), (2**16, 2**16), (2**13, 2**12 + 1)):
        yield f"size {size}", png(size=size, data=b"\0" * 99)
    yield "data bomb", png(data=b"\0" * 2**24)
    yield "interlaced", png(interlace=1)
    yield "interlaced in another way", png(interlace=7)
    yield "filter of 99", png(data=(b"\x63" + b"\0" * 24) * 8)
    yield "two headers", png(chunk(b"IHDR", struct.pack(">IIBBBBB", 2**15, 2**15, 8, 2, 0, 0, 0)))
    good = png(data=rng.integers(0, 5, 25 * 8).astype(np.uint8).tobytes())
    yield "wrong checksum of the data", good[:-20] + b"\0\0\0\0" + good[-16:]
    yield "wrong checksum of a text", png(chunk(b"tEXt", b"k\0v")[:-4] + b"\0\0\0\0")
    yield "chunk of negative length", good[:33] + b"\xff\xff\xff\xffIDAT" + good[33:]
    yield "unknown critical chunk", png(chunk(b"ABCD", b"x" * 100))
    yield "no end", good[:-12]
    yield "end first", good[:8] + chunk(b"IEND", b"") + good[8:]
    yield "signature alone", good[:8]
    yield "header cut", good[:20]
    for kind, content in ((b"gAMA", b"\0" * 4), (b"cHRM", b"x"), (b"pHYs", b""), (b"sRGB", b""), (b"cICP", b"\xff")):
        yield f"{kind.decode()} of {len(content)}", png(chunk(kind, content))
    yield "compressed with garbage", good[:41] + rng.integers(0, 256, 30).astype(np.uint8).tobytes() + good[71:]
    for mode in ("1", "LA", "P", "RGBA", "I;16"):
        yield f"mode {mode}", encoded(Image.new(mode, (9, 7)), "PNG")


def exif_loop():
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, 8) for tag in (0x8769, 0x8825, 0xA005, 330))
    return b"II*\0\x08\0\0\0\x04\0" + entries + struct.pack("<I", 8)


def exif_of(orientation, kind=3, n=1):
    return b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHII", 274, kind, n, orientation) + b"\0" * 4


def segment(marker, content):
    return bytes((0xFF, marker)) + struct.pack(">H", len(content) + 2) + content


def jpeg_files(rng):
    good = encoded(noise(rng), "JPEG")
    soft = encoded(noise(rng), "JPEG", progressive=True)
    last = soft.rfind(b"\xff\xda")
    for n in (50, 5000):
        yield f"{n} scans", soft[:-2] + soft[last:-2] * n + b"\xff\xd9"
    large = encoded(Image.new("L", (5000, 5000), 99), "JPEG", progressive=True)
    yield "scans of a large image", large[:-2] + large[large.rfind(b"\xff\xda") : -2] * 20_000 + b"\xff\xd9"

    def with_segments(*segments):
        return good[:2] + b"".join(segments) + good[2:]

    yield "many comments", with_segments(*[segment(0xFE, b"c")] * 3000)
    yield "too many comments", with_segments(*[segment(0xFE, b"c")] * 9000)
    yield "long comments", with_segments(*[segment(0xFE, b"c" * 65_000)] * 40)
    yield "empty segments", with_segments(*[b"\xff\xe5\0\2"] * 2000)
    yield "segment of length 0", with_segments(b"\xff\xe5\0\0")
    yield "segment beyond the end", with_segments(b"\xff\xe5\xff\xff")
    yield "fill bytes", with_segments(b"\xff" * 10**6)
    yield "fill bytes without a marker", with_segments(b"\xff" * 10**6 + b"\0")
    yield "fill bytes in the scan", good[:-2] + b"\xff" * 10**6 + b"\0\xff\xd9"
    yield "exif loop", with_segments(segment(0xE1, b"Exif\0\0" + exif_loop()))
    yield "exif of nothing", with_segments(segment(0xE1, b"Exif\0\0"))
    yield "exif twice", with_segments(*[segment(0xE1, b"Exif\0\0" + exif_of(6))] * 2)
    for orientation, kind, n in ((0, 3, 1), (9, 3, 1), (65_535, 3, 1), (6, 4, 1), (6, 2, 2**32 - 1), (6, 99, 1)):
        content = segment(0xE1, b"Exif\0\0" + exif_of(orientation, kind, n))
        yield f"orientation {orientation} of kind {kind}, {n}", with_segments(content)
    many = b"II*\0\x08\0\0\0\xff\xff" + struct.pack("<HHII", 270, 2, 60_000, 8) * 5400
    yield "exif of many entries", with_segments(segment(0xE1, b"Exif\0\0" + many))
    yield "thumbnail in exif", with_segments(segment(0xE1, b"Exif\0\0" + exif_of(1) + good))
    yield "thumbnail of JFXX", with_segments(segment(0xE0, b"JFXX\0\x10" + good))
    yield "JFIF too short", good[:2] + segment(0xE0, b"JFIF\0") + good[20:]
    profile = [segment(0xE2, b"ICC_PROFILE\0" + bytes((i, 255)) + b"p" * 65_000) for i in range(1, 101)]
    yield "large profile", with_segments(*profile)
    yield "profile of lies", with_segments(segment(0xE2, b"ICC_PROFILE\0\x09\x01x"), segment(0xE2, b"ICC_PROFILE\0"))
    yield "xmp", with_segments(segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + b"<a>" * 20_000))
    yield "photoshop", with_segments(segment(0xED, b"Photoshop 3.0\x008BIM\x04\x04\0\0\xff\xff\xff\xff"))
    yield "iptc", with_segments(segment(0xED, b"Photoshop 3.0\x008BIM\x04\x04\0\0\0\0\0\x08\x1c\x02\x78\xff\xff"))
    lies = struct.pack("<HHI", 0xB001, 4, 1) + struct.pack("<I", 2**32 - 1)
    yield "many pictures in one", with_segments(segment(0xE2, b"MPF\0II*\0\x08\0\0\0\x01\0" + lies + b"\0" * 4))
    yield "mpo", encoded(noise(rng), "MPO", save_all=True, append_images=[noise(rng)] * 3)
    yield "adobe of lies", with_segments(segment(0xEE, b"Adobe\0\x64\0\0\0\0\x09"))
    yield "cmyk", encoded(Image.new("CMYK", (9, 9), (1, 2, 3, 4)), "JPEG")
    frame = good.find(b"\xff\xc0") + 5
    for size in ((0, 0), (0, 9), (65_535, 65_535), (8192, 4097)):
        yield f"size {size}", good[:frame] + struct.pack(">HH", *size) + good[frame + 4 :]
    yield "twelve bits", good[: frame - 1] + b"\x0c" + good[frame:]
    yield "sampling of 0", good[: frame + 6] + b"\0" + good[frame + 7 :]
    yield "sampling of 4 x 4", good[: frame + 6] + b"\x44" + good[frame + 7 :]
    yield "255 components", good[: frame + 4] + b"\xff" + good[frame + 5 :]
    for marker in (0xC1, 0xC3, 0xC5, 0xC9, 0xCA, 0xCB):
        yield f"frame of kind {marker:x}", good[: frame - 4] + bytes((marker,)) + good[frame - 3 :]
    yield "two frames", good[: frame - 5] + good[frame - 5 : frame + 14] + good[frame - 5 :]
    for name, marker in (("tables", b"\xff\xdb"), ("codes", b"\xff\xc4"), ("scan", b"\xff\xda")):
        yield f"no {name}", good.replace(marker, b"\xff\xe9")
    yield "two beginnings", good[:2] + good
    yield "restarts", good.replace(b"\xff\xda", b"\xff\xdd\0\4\0\1\xff\xda")[:-2] + b"\xff\xd3" * 5000 + b"\xff\xd9"
    yield "much behind the end", good + rng.integers(0, 256, 10**6).astype(np.uint8).tobytes()
    yield "a picture behind the end", good * 30
    yield "markers alone", b"\xff\xd8" + b"\xff\xe0\0\2" * 1000 + b"\xff\xd9"
    yield "beginning alone", b"\xff\xd8\xff"
    yield "stuffed zeros", good[:-2] + b"\xff\0" * 500_000 + b"\xff\xd9"


def gif_files(rng):
    good = encoded(noise(rng, (24, 30)), "GIF")
    table = good[:13] + good[13 : 13 + 768]
    frame = good[good.index(b",", len(table)) :]
    yield "comments of one byte", table + (b"!\xfe" + b"\1a" * 30_000 + b"\0") + frame
    yield "too many comments", table + (b"!\xfe" + b"\1a" * 10**6 + b"\0") + frame
    yield "a thousand comments", table + (b"!\xfe\4abcd\0") * 1000 + frame
    yield "an endless loop", table + b"!\xff\x0bNETSCAPE2.0\3\1\xff\xff\0" * 500 + frame
    yield "xmp", table + b"!\xff\x0bXMP DataXMP" + b"<" * 1000 + frame
    yield "control of nothing", table + b"!\xf9\0" + frame
    yield "control too short", table + b"!\xf9\1\1\0" + frame
    yield "transparent colour that is none", table + b"!\xf9\4\1\0\0\xff\0" + frame
    yield "extension without end", table + b"!\xfe\xff"
    yield "zeros before the frame", table + b"\0" * 10**6 + frame
    yield "no frame", table + b";"
    yield "table cut", good[:100]
    for size in ((0, 0), (65_535, 65_535), (1, 1)):
        yield f"canvas of {size}", good[:6] + struct.pack("<HH", *size) + table[10:] + frame
        yield f"frame of {size}", table + frame[:5] + struct.pack("<HH", *size) + frame[9:]
    yield "frame outside", table + b"," + struct.pack("<HH", 65_000, 65_000) + frame[5:]
    yield "no colours", good[:10] + b"\0" + good[11:13] + frame
    for bits in (0, 1, 12, 13, 255):
        yield f"codes of {bits} bits", table + frame[:10] + bytes((bits,)) + frame[11:]
    yield "frames", encoded(noise(rng, (9, 9)), "GIF", save_all=True, append_images=[noise(rng, (9, 9))] * 100)
    yield "many frames", table + frame[:-1] * 2000 + b";"
    yield "interlaced", table + frame[:9] + b"\x40" + frame[10:]


def riff(*chunks):
    body = b"WEBP" + b"".join(kind + struct.pack("<I", len(c)) + c + b"\0" * (len(c) % 2) for kind, c in chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def webp_files(rng):
    lossy, lossless = encoded(noise(rng), "WEBP")[20:], encoded(noise(rng), "WEBP", lossless=True)[20:]

    def extended(flags, *chunks, size=(30, 24)):
        canvas = bytes((flags, 0, 0, 0)) + b"".join((n - 1).to_bytes(3, "little") for n in size)
        return riff((b"VP8X", canvas), *chunks)

    pixels = (b"VP8L", lossless)
    yield "lossless", riff(pixels)
    yield "lossy", riff((b"VP8 ", lossy))
    for size in ((2**24, 2**24), (16_384, 16_384), (1, 2**24), (8192, 4097), (29, 24)):
        yield f"canvas of {size}", extended(0, pixels, size=size)
    yield "exif loop", extended(8, pixels, (b"EXIF", exif_loop()))
    yield "exif first", extended(8, (b"EXIF", b"Exif\0\0" + exif_of(6)), pixels)
    yield "no exif", extended(8, pixels)
    yield "large profile", extended(32, (b"ICCP", b"p" * 10**6), pixels)
    yield "xmp", extended(4, pixels, (b"XMP ", b"<a>" * 10**5))
    yield "no pixels", extended(0)
    yield "no alpha", extended(16, (b"ALPH", b""), (b"VP8 ", lossy))
    yield "alpha of lies", extended(16, (b"ALPH", b"\1" + b"\xff" * 50), (b"VP8 ", lossy))
    yield "many chunks", riff(pixels, *[(b"JUNK", b"")] * 20_000)
    yield "too many chunks", riff(*[(b"JUNK", b"")] * 70_000)
    yield "two images", riff(pixels, (b"VP8 ", lossy), pixels)
    yield "size of lies", b"RIFF\xff\xff\xff\xffWEBPVP8L\xff\xff\xff\xff" + lossless
    yield "nothing inside", b"RIFF\4\0\0\0WEBP"
    yield "header cut", riff((b"VP8L", lossless[:3]))
    yield "header of lossy cut", riff((b"VP8 ", lossy[:7]))
    yield "zeros", riff((b"VP8L", b"\x2f" + b"\0" * 100))
    frames = [noise(rng, (9, 9, 3)) for _ in range(30)]
    moving = encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:])
    yield "frames", moving
    yield "many frames", moving + moving[moving.index(b"ANMF") :] * 200
    first = moving.index(b"ANMF") + 8
    yield "frame outside", moving[:first] + b"\xff\xff\xff" * 2 + moving[first + 6 :]
    yield "frame of another size", moving[: first + 6] + b"\xff\xff\xff" * 2 + moving[first + 12 :]


def directory(entries, order="<", following=0):
    packed = b"".join(struct.pack(order + "HHII", *entry) for entry in entries)
    return struct.pack(order + "H", len(entries)) + packed + struct.pack(order + "I", following)


def tiff(changes=(), data=b"\x55" * 64, following=0):
    """A grey image of 8 x 8 pixels with other entries."""
    entries = {256: (3, 1, 8), 257: (3, 1, 8), 258: (3, 1, 8), 259: (3, 1, 1), 262: (3, 1, 1), 273: (4, 1, 8),
               277: (3, 1, 1), 278: (3, 1, 8), 279: (4, 1, len(data))} | dict(changes)  # fmt: skip
    place = 8 + len(data) + len(data) % 2
    rows = [(tag, *entry) for tag, entry in sorted(entries.items())]
    return struct.pack("<2sHI", b"II", 42, place) + data + b"\0" * (len(data) % 2) + directory(rows, "<", following)


def tiff_files(rng):
    for tag, entry in (
        (256, (3, 1, 0)), (256, (4, 1, 2**31)), (257, (4, 1, 2**26)), (258, (3, 1, 64)), (258, (3, 1, 12)),
        (258, (3, 60_000, 8)), (262, (3, 1, 8)), (262, (3, 1, 3)), (262, (3, 1, 99)), (266, (3, 1, 2)),
        (273, (4, 1, 2**32 - 1)), (273, (4, 2**31, 8)), (274, (3, 1, 6)), (274, (3, 1, 99)), (277, (3, 1, 65_535)),
        (278, (4, 1, 2**32 - 1)), (278, (4, 1, 0)), (279, (4, 1, 2**32 - 1)), (284, (3, 1, 2)), (317, (3, 1, 3)),
        (322, (4, 1, 2**31)), (322, (4, 1, 0)), (338, (3, 30_000, 0)), (339, (3, 1, 3)), (339, (3, 1, 9)),
    ):  # fmt: skip
        yield f"entry {tag} {entry}", tiff({tag: entry})
    for compression in (0, 2, 3, 4, 5, 6, 7, 8, 32_773, 32_946, 34_661, 34_712, 34_925, 34_926, 50_000, 50_001, 9999):
        yield f"compression {compression}", tiff({259: (3, 1, compression)})
    for tag in (270, 700, 33_723, 34_377, 34_675, 37_724):
        yield f"metadata {tag} of 4 GB", tiff({tag: (7, 2**32 - 1, 8)})
        yield f"metadata {tag}", tiff({tag: (7, 60, 8)})
    for tag in (330, 34_665, 34_853, 40_965):
        yield f"directory {tag} in itself", tiff({tag: (4, 1, 8 + 64)})
    yield "directories in a circle", tiff(following=8 + 64)
    yield "metadata that overlap", tiff(dict.fromkeys(range(1000, 1500), (7, 64, 8)))
    yield "too many entries", tiff(dict.fromkeys(range(1000, 60000), (3, 1, 1)))
    bomb = zlib.compress(b"\0" * 2**24)
    yield "data bomb", tiff({259: (3, 1, 8), 279: (4, 1, len(bomb))}, bomb)
    counts = struct.pack("<I", 8) * 20_000 + struct.pack("<I", 160_000) * 20_000
    places = {256: (3, 1, 8), 257: (4, 1, 20_000), 278: (3, 1, 1), 273: (4, 20_000, 8), 279: (4, 20_000, 8 + 80_000)}
    yield "strips that overlap", tiff(places | {259: (3, 1, 8)}, counts)
    yield "plain strips that overlap", tiff(places, counts)
    tile = {322: (4, 1, 2**16), 323: (4, 1, 2**16), 324: (4, 1, 8), 325: (4, 1, 64)}
    yield "tile of 4 GB", tiff(tile)
    yield "compressed tile of 4 GB", tiff(tile | {259: (3, 1, 8)})
    yield "tile of 64 MB", tiff({**tile, 322: (4, 1, 2**13), 323: (4, 1, 2**13), 259: (3, 1, 8)})
    soft = encoded(noise(rng, (8, 8)), "JPEG", progressive=True)
    scans = soft[:-2] + soft[soft.rfind(b"\xff\xda") : -2] * 3000 + b"\xff\xd9"
    yield "JPEG of many scans", tiff({259: (3, 1, 7), 279: (4, 1, len(scans))}, scans)
    yield "beginning alone", b"II*\0"
    yield "directory beyond the end", b"MM\0*\xff\xff\xff\xff"
    yield "directory at 0", b"II*\0\0\0\0\0"
    yield "large offsets", b"II+\0\x08\0\0\0" + b"\xff" * 8 + b"\0" * 100
    yield "large and many", b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, 2**62) + b"\0" * 100
    yield "floats", encoded(Image.fromarray(np.full((4, 4), np.nan, np.float32)), "TIFF")
    yield "cmyk", encoded(Image.new("CMYK", (9, 9)), "TIFF")
    yield "lab", encoded(Image.new("LAB", (9, 9)), "TIFF")
    yield "thirty-two bits", encoded(Image.new("I", (9, 9), -5), "TIFF")
    yield "pages", encoded(noise(rng, (9, 9)), "TIFF", save_all=True, append_images=[noise(rng, (9, 9))] * 50)
    for name in ("tiff_lzw", "jpeg", "packbits", "tiff_adobe_deflate", "group4"):
        image = noise(rng, (24, 30)).convert("1" if name == "group4" else "L")
        yield f"{name} cut", encoded(image, "TIFF", compression=name)[:-150]


def bmp(width=8, height=8, bits=8, compression=0, data=b"", header=40, colours=2, offset=62):
    fields = struct.pack("<IiiHHIIiiII", header, width, height, 1, bits, compression, len(data), 0, 0, colours, 0)
    return b"BM" + struct.pack("<IHHI", 62 + len(data), 0, 0, offset) + fields + b"\0\0\0\0\xff\xff\xff\0" + data


def bmp_files(rng):
    for width, height in ((0, 0), (-5, 5), (5, -5), (2**31 - 1, 1), (1, -(2**31)), (2**15, 2**15), (2**20, 3)):
        yield f"size {width} x {height}", bmp(width, height)
        yield f"run lengths of {width} x {height}", bmp(width, height, compression=1, data=b"\xff\1" * 50)
    yield "run lengths", bmp(compression=1, data=b"\x08\1\0\0" * 8 + b"\0\1")
    yield "run lengths of a large image", bmp(2**12, 2**12, compression=1, data=b"\xff\1" * 70_000)
    yield "lines without end", bmp(2**11, 2**11, compression=1, data=b"\1\1\0\0" * 2**11)
    yield "jumps", bmp(2**11, 2**11, compression=1, data=b"\0\2\xff\xff" * 50_000)
    yield "run lengths of four bits", bmp(2**11, 2**11, 4, 2, data=b"\xff\x12" * 20_000)
    yield "runs of nothing", bmp(compression=1, data=b"\0\0" * 2**19)
    yield "five megabytes of runs", bmp(compression=1, data=b"\0\0" * (5 * 2**19))
    for compression in (3, 4, 5, 6, 11, 99):
        yield f"compression {compression}", bmp(compression=compression, data=b"\1" * 64)
    for bits in (0, 1, 2, 4, 16, 24, 32, 64, 65_535):
        yield f"{bits} bits", bmp(bits=bits, data=b"\1" * 256)
    yield "four billion colours", bmp(colours=2**32 - 1)
    yield "pixels beyond the end", bmp(offset=2**31, data=b"\1" * 64)
    for header in (0, 12, 16, 64, 108, 124, 2**31):
        yield f"header of {header}", bmp(header=header, data=b"\1" * 64)
    yield "beginning alone", b"BM"


def other_files(rng):
    """Formats that are not taken, and what is no image."""
    image = noise(rng)
    for form in ("ICO", "PPM", "TGA", "PCX", "SGI", "DDS", "JPEG2000", "ICNS", "AVIF", "QOI", "BLP", "PDF", "EPS"):
        try:
            yield form, encoded(image.convert("P") if form == "BLP" else image, form)
        except (OSError, KeyError):  # this Pillow cannot write it
            continue
    yield "ppm of lies", b"P6 99999 99999 255\n"
    yield "plain ppm", b"P3 2000 2000 255\n" + b"1 " * 1000
    yield "pam", b"P7\nWIDTH 9\nHEIGHT 9\nDEPTH 3\nMAXVAL 255\nTUPLTYPE RGB\nENDHDR\n"
    yield "icns in icns", b"icns\0\0\0\x18ic07\0\0\0\x10icns\0\0\0\x08"
    icon = b"\0\0\1\0\1\0\0\0\0\0\1\0\x20\0" + struct.pack("<II", 200, 22)
    yield "ico with a bomb", icon + png(size=(2**15, 2**15), data=b"")
    yield "psd", b"8BPS\0\1\0\0\0\0\0\0\0\3\0\0\xff\xff\0\0\xff\xff\0\x08\0\3"
    yield "jpeg 2000", b"\0\0\0\x0cjP  \r\n\x87\n\0\0\0\0jp2h"
    yield "avif", b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf"
    yield "fli", b"\0\0\0\0\x11\xaf\xff\xff\xff\xff\xff\xff\x08\0\3\0" + b"\0" * 128
    yield "fits", b"SIMPLE  =                    T" + b" " * 2850
    yield "xpm", b"/* XPM */\nstatic char *a[] = {\n" + b'"99999 99999 1 1",\n' * 100
    yield "xbm", b"#define a_width 99999\n#define a_height 99999\n"
    yield "svg", b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    yield "xml entities", b'<!DOCTYPE a [<!ENTITY b "bbbb">]><a>&b;&b;</a>'
    yield "postscript", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(%pipe%id) (r) file\n"
    yield "nothing", b""
    yield "one byte", b"\xff"
    yield "zeros", bytes(10**6)
    yield "random bytes", rng.integers(0, 256, 10**5).astype(np.uint8).tobytes()


def cut_files(rng):
    image = noise(rng)
    for form in ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF"):
        content = encoded(image, form)
        for share in SHARES:
            yield f"{form} cut at {share}", content[: int(share * len(content))]


MAKERS = {"png": png_files, "jpeg": jpeg_files, "gif": gif_files, "webp": webp_files, "tiff": tiff_files,
          "bmp": bmp_files, "other": other_files, "cut": cut_files}  # fmt: skip


def hostile_images(seed=0):
    """All of them, one after the other, so that few are in memory at a time."""
    rng = np.random.default_rng(seed)
    for family, make in MAKERS.items():
        for name, content in make(rng):
            yield f"{family}: {name}", content


def damaged_images(rng, n):
    """Good files of all formats with some bytes changed, removed or doubled."""
    good = [encoded(noise(rng), form, **options) for form, options in (
        ("PNG", {}), ("JPEG", {}), ("JPEG", {"progressive": True}), ("WEBP", {}), ("WEBP", {"lossless": True}),
        ("BMP", {}), ("GIF", {}), ("TIFF", {}), ("TIFF", {"compression": "tiff_lzw"}),
        ("TIFF", {"compression": "jpeg"}), ("TIFF", {"compression": "tiff_adobe_deflate"}),
    )]  # fmt: skip
    good += [content for name, content in hostile_images() if len(content) < 5000]
    for i in range(n):
        content = bytearray(good[int(rng.integers(len(good)))] or b"\0")
        for _ in range(int(rng.integers(1, 6))):
            place, length = int(rng.integers(len(content))), int(rng.integers(1, 9))
            kind = rng.integers(4)
            if kind < 2:
                content[place : place + length] = rng.integers(0, 256, length).astype(np.uint8).tobytes()
            elif kind == 2:
                content[place:place] = content[place : place + 10 * length]
            elif len(content) > 2 * length:
                del content[place : place + length]
        yield f"damaged {i}", bytes(content)
