"""The page when something goes wrong: a lost server, refused files, other windows, names that do not fit."""

import time

import pytest

from .test_browser import add_class, add_to_pool, browser, digits, is_settled, page, pytestmark, sync_api, teach  # noqa: F401

OUTSIDE = """() => [...document.querySelectorAll("main *, #selection *")]
    .filter((e) => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".unseen"))
    .map((e) => e.outerHTML.slice(0, 200))"""
SPLIT = """async () => {
    const modules = ["sync", "api", "state"].map((name) => import(`/static/${name}.js`));
    const [{ change }, { api }, { state }] = await Promise.all(modules);
    const ids = Array.from({ length: 1200 }, (_, i) => i + 1), sizes = [];
    state.overview.pictures = ids.map((id) => ({ id, name: "x", class_id: null, accepted_id: null, is_none: false }));
    api.change = async (changes) => { sizes.push(changes.length); };
    change(ids.map((id) => ({ picture_id: id, class_id: null, accepted_id: null, is_none: true })), "all");
    while (sizes.reduce((sum, n) => sum + n, 0) < ids.length) await new Promise((done) => setTimeout(done, 10));
    return sizes;
}"""


@pytest.fixture
def taught_page(page, digits):  # noqa: F811
    """The page with two examples of each of three classes, and three other images."""
    teach(page, digits, n=2)
    add_to_pool(page, [paths[3] for paths in digits.values()])
    sync_api.expect(page.locator("#filter-todo .n")).to_have_text("3")
    is_settled(page)
    return page


def test_labels_given_while_the_server_is_away_are_sent_when_it_is_back(taught_page):
    page, expect = taught_page, sync_api.expect  # noqa: F811
    page.context.set_offline(True)
    for _ in range(2):
        page.locator("#question .choice").first.click()
    expect(page.locator("#away")).to_be_visible()
    expect(page.locator("#problems .problem")).to_have_count(0)
    page.context.set_offline(False)
    expect(page.locator("#away")).to_be_hidden()
    is_settled(page)
    pictures = page.evaluate("() => fetch('api/session').then((answer) => answer.json())")["pictures"]
    assert sum(picture["class_id"] is not None for picture in pictures) == 8
    expect(page.locator("#classes-count")).to_have_text("8 examples")


def test_a_page_with_labels_on_their_way_is_not_left_without_a_question(taught_page):
    page = taught_page  # noqa: F811
    asked = []
    page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.dismiss()))
    held = []
    page.route("**/api/pictures", lambda route: held.append(route))
    page.locator("#question .choice").first.click()
    with page.expect_event("dialog"):
        page.evaluate("() => { location.reload(); }")
    assert asked == ["beforeunload"]
    for route in held:
        route.continue_()
    page.unroute("**/api/pictures")
    is_settled(page)
    page.reload()
    sync_api.expect(page.locator("#classes-count")).to_have_text("7 examples")
    assert asked == ["beforeunload"]


def test_files_that_are_refused_are_told_together(page, digits, tmp_path):  # noqa: F811
    for i in range(12):
        (tmp_path / f"broken-{i}.png").write_bytes(b"no image %d" % i)
    add_class(page, "one")
    add_to_pool(page, [*digits[3][:2], *sorted(tmp_path.iterdir())])
    alert = page.locator("#problems")
    sync_api.expect(alert).to_contain_text("12 of 14 files were not added (broken-")
    sync_api.expect(alert.locator(".problem")).to_have_count(1)
    sync_api.expect(page.locator("#status")).to_have_text("2 of 14 images added")


def test_the_images_of_a_folder_are_added(page, digits, tmp_path):  # noqa: F811
    folder = tmp_path / "scans" / "monday"
    folder.mkdir(parents=True)
    for i, path in enumerate(digits[5][:3]):
        with open(path, "rb") as file:
            (folder / f"{i}.png").write_bytes(file.read())
    (folder / "notes.txt").write_text("no image")
    add_class(page, "one")
    devtools, box = page.context.new_cdp_session(page), page.locator("#pool-drop .drop").bounding_box()
    data = {"items": [], "files": [str(tmp_path / "scans")], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        place = {"x": box["x"] + 20, "y": box["y"] + 10}
        devtools.send("Input.dispatchDragEvent", {"type": kind, **place, "data": data})
    sync_api.expect(page.locator("#filter-all .n")).to_have_text("3")
    sync_api.expect(page.locator("#problems .problem")).to_have_count(0)
    assert page.problems == []


def test_undo_passes_over_what_is_deleted(taught_page):
    page, expect = taught_page, sync_api.expect  # noqa: F811
    for key in "13":
        page.locator("#grid .tile").first.focus()
        page.keyboard.press(key)
        is_settled(page)
    page.get_by_role("button", name="Delete class digit 8").click()
    expect(page.get_by_role("dialog")).to_contain_text("This cannot be undone.")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.locator("#classes-count")).to_have_text("5 examples")
    is_settled(page)
    page.locator("#undo").click()
    expect(page.locator("#classes-count")).to_have_text("4 examples")
    expect(page.locator("#undo")).to_be_disabled()
    assert page.problems == []


def test_a_window_shows_what_another_one_has_changed(taught_page, shared):
    page = taught_page  # noqa: F811
    other = page.context.new_page()
    other.goto(shared.url)
    is_settled(other)
    other.locator("#question .choice").first.click()
    sync_api.expect(other.locator("#classes-count")).to_have_text("7 examples")
    is_settled(other)
    page.evaluate("dispatchEvent(new Event('focus'))")  # both windows can be seen
    sync_api.expect(page.locator("#classes-count")).to_have_text("7 examples")


def test_images_and_classes_that_another_window_has_removed_do_not_stop_a_removal(taught_page):
    page, expect = taught_page, sync_api.expect  # noqa: F811
    page.locator("#filter-todo").click()
    page.keyboard.press("g")
    page.keyboard.press("Control+a")
    first = page.locator("#grid .tile").first.get_attribute("data-id")
    assert page.evaluate(f"() => fetch('api/pictures/{first}', {{ method: 'DELETE' }}).then(({{ ok }}) => ok)")
    page.locator("#remove-selected").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.locator("#filter-todo .n")).to_have_text("0")
    expect(page.locator("#problems .problem")).to_have_count(0)
    card = page.locator("article.class").last
    number = card.get_attribute("id").partition("-")[2]
    assert page.evaluate(f"() => fetch('api/classes/{number}', {{ method: 'DELETE' }}).then(({{ ok }}) => ok)")
    card.get_by_role("button", name="Delete class").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.locator("#problems")).to_contain_text("is gone: it was removed in another window")
    expect(page.locator("article.class")).to_have_count(2)


def test_a_session_that_is_gone_is_replaced_with_a_word_about_it(taught_page):
    page = taught_page  # noqa: F811
    page.evaluate("() => fetch('api/session', { method: 'DELETE' })")
    page.locator("#question .choice").first.click()
    sync_api.expect(page.locator("#problems")).to_contain_text("Your session is gone")
    sync_api.expect(page.locator("#class-list .steps")).to_be_visible()


def test_an_empty_session_that_is_gone_is_replaced_without_a_word(page):  # noqa: F811
    sync_api.expect(page.get_by_label("Name of a new class")).to_be_enabled()
    page.evaluate("() => fetch('api/session', { method: 'DELETE' })")
    add_class(page, "one")
    sync_api.expect(page.locator("#problems .problem")).to_have_count(0)


def test_a_name_that_is_taken_is_told_below_its_field(page):  # noqa: F811
    add_class(page, "one")
    name = page.get_by_label("Name of a new class")
    name.fill("one")
    page.keyboard.press("Enter")
    sync_api.expect(page.locator("#new-class").get_by_role("alert")).to_contain_text("a name that no class has yet")
    sync_api.expect(page.locator("#problems .problem")).to_have_count(0)
    name.fill("two")
    sync_api.expect(page.locator("#new-problem")).to_be_hidden()


def test_more_changes_than_a_request_takes_are_sent_in_parts(taught_page):
    assert taught_page.evaluate(SPLIT) == [500, 500, 200]


@pytest.mark.parametrize("width", [390, 640, 1280])
def test_long_names_fit_in_lists_and_in_the_bar_of_the_selection(page, digits, width):  # noqa: F811
    page.set_viewport_size({"width": width, "height": 900})
    for name, path in (("W" * 60, digits[3][0]), ("أبجدية الحروف العربية " * 2, digits[5][0])):
        add_class(page, name.strip())
        page.locator("article.class").last.get_by_label("Add images to class").set_input_files(path)
    sync_api.expect(page.locator("#classes-count")).to_have_text("2 examples")
    add_to_pool(page, digits[8][:2])
    sync_api.expect(page.locator("#grid .tile")).to_have_count(2)
    is_settled(page)
    page.locator("#grid .tile").first.focus()
    page.keyboard.press("Control+a")
    sync_api.expect(page.locator("#selection")).to_be_visible()
    assert page.evaluate(OUTSIDE) == []
    assert page.locator("#class-list h3 .name").last.evaluate("(name) => getComputedStyle(name).direction") == "rtl"


def test_start_over_ends_an_upload(page, digits):  # noqa: F811
    files = [path for paths in digits.values() for path in paths]
    page.route("**/api/pool*", lambda route: (time.sleep(0.2), route.continue_()))
    add_to_pool(page, files)
    sync_api.expect(page.locator("#filter-all")).to_be_visible()
    page.locator("#reset").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete everything").click()
    sync_api.expect(page.locator("#status")).to_have_text("All images are deleted")
    is_settled(page)
    page.wait_for_timeout(1500)  # more than an upload takes
    assert page.evaluate("() => fetch('api/session').then((answer) => answer.json())")["pictures"] == []
