import threading

import pytest
import torch

from mirrorshot.gp.threads import one_thread


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_small_work_has_one_thread_and_the_number_comes_back(two_threads):
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_large_work_keeps_all_threads(two_threads):
    with one_thread(is_small=False):
        assert torch.get_num_threads() == 2


def test_the_number_comes_back_after_an_error(two_threads):
    with pytest.raises(ZeroDivisionError), one_thread():
        _ = 1 / 0
    assert torch.get_num_threads() == 2


def test_python_threads_do_not_disturb_each_other(two_threads):
    inside, done = threading.Event(), threading.Event()

    def other():
        with one_thread():
            inside.set()
            done.wait(300)

    worker = threading.Thread(target=other)
    worker.start()
    inside.wait(300)
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    done.set()
    worker.join(300)
    assert torch.get_num_threads() == 2
