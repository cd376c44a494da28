import subprocess
import sys

CODE = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Blocked())
from PIL import Image
import numpy as np
from mirrorshot.encoders import EncoderError, candidates, make_encoder
for name in ("glyphs", *candidates("picture")):
    assert np.isfinite(make_encoder(name).encode([Image.new("L", (20, 20), 9)])).all()
for name in candidates("text"):
    assert np.isfinite(make_encoder(name).encode(["a text"])).all()
for name, extra in (("timm:net", "torch"), (sys.argv[1], "mirrorshot[train]")):
    try:
        make_encoder(name)
    except EncoderError as error:
        assert extra in str(error), error
    else:
        raise AssertionError(name)
"""


def test_encoders_of_the_package_need_no_torch_and_the_others_say_so(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    found = subprocess.run([sys.executable, "-c", CODE, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
