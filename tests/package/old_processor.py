"""On a processor without AVX2 (qemu's): what users are told. old_processor.py MODEL"""
import sys

import ferrule

try:
    ferrule.Session(sys.argv[1], backend="cpu")
except ferrule.Error as e:
    assert e.code == "machine_unsupported" and "AVX2" in str(e), (e.code, str(e))
    print(e)
else:
    sys.exit("a processor without AVX2 was taken")
