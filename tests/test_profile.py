"""One hypothesis profile for all tests, in conftest.py."""

import os
import re
from pathlib import Path

from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent


def test_no_example_has_a_deadline():
    assert settings.get_profile(settings.get_current_profile_name()).deadline is None
    for name in ("mirrorshot", "extended"):
        profile = settings.get_profile(name)
        assert profile.deadline is None
        assert profile.derandomize == ("CI" in os.environ)
        assert HealthCheck.too_slow in profile.suppress_health_check
    assert settings.get_profile("extended").max_examples > settings.get_profile("mirrorshot").max_examples


def test_no_test_sets_a_deadline_of_its_own():
    pattern = re.compile(r"settings\([^()]*deadline=")
    assert [path.name for path in TESTS.rglob("test_*.py") if pattern.search(path.read_text("utf-8"))] == []
