"""The page itself: Markdown, safety, appearance, keyboard."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import expect

expect.set_options(timeout=30_000)

RENDER = """async (text) => {
  const { renderMarkdown } = await import('/web/markdown.js');
  const place = document.createElement('div');
  renderMarkdown(place, text);
  return place.innerHTML;
}"""


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("plain", "<p>plain</p>"),
        ("one\ntwo", "<p>one<br>two</p>"),
        ("*a* **b** ***c*** ~~d~~", "<p><em>a</em> <strong>b</strong> <em><strong>c</strong></em> <del>d</del></p>"),
        ("snake_case_name and 2*3*4", "<p>snake_case_name and 2<em>3</em>4</p>"),
        ("**bold *and* more**", "<p><strong>bold <em>and</em> more</strong></p>"),
        ("unclosed **bold", "<p>unclosed **bold</p>"),
        ("`a*b*` and ``c`d``", "<p><code>a*b*</code> and <code>c`d</code></p>"),
        (r"\*not\* \`code\`", "<p>*not* `code`</p>"),
        ("# One\n## Two", '<h3 class="heading-1">One</h3><h4 class="heading-2">Two</h4>'),
        ("# a # b ##\n### #\n# c#", '<h3 class="heading-1">a # b</h3><h5 class="heading-3"></h5><h3 class="heading-1">c#</h3>'),
        ("*a **b c** ~d~ e~~", "<p>*a <strong>b c</strong> <del>d</del> e~~</p>"),
        ("- a\n- b\n  - c\n- d", "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>"),
        ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
        ("1. a\n\n   more\n\n2. b", "<ol><li><p>a</p><p>more</p></li><li><p>b</p></li></ol>"),
        ("Text:\n- a\n- b\n\nend", "<p>Text:</p><ul><li>a</li><li>b</li></ul><p>end</p>"),
        ("1. a\n  - b", "<ol><li>a<ul><li>b</li></ul></li></ol>"),
        ("> a\n> > b", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>"),
        ("a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"),
        ("<b>x</b> & &amp; <br> y", "<p>&lt;b&gt;x&lt;/b&gt; &amp; &amp; <br> y</p>"),
    ],
)
def test_markdown(page, text, html):
    assert page.evaluate(RENDER, text) == html


def test_code_has_its_language_and_its_text(page):
    html = page.evaluate(RENDER, "```python\nif a < b:\n\n    *x*\n```\nafter")
    assert '<span>python</span>' in html
    assert '<code>if a &lt; b:\n\n    *x*</code>' in html
    assert html.endswith("<p>after</p>")
    assert "<code>a:\n\tb</code>" in page.evaluate(RENDER, "```make\na:\n\tb\n```"), "a tab is a tab"
    # While it is written its end is not there yet.
    assert "<code>a\n- b</code>" in page.evaluate(RENDER, "```\na\n- b")


def test_tables(page):
    html = page.evaluate(RENDER, "| a | b |\n|:--|--:|\n| 1 | `x|y` |\n| 2 |\n\nend")
    assert '<th>a</th><th data-align="right">b</th>' in html
    assert '<td>1</td><td data-align="right"><code>x|y</code></td>' in html
    assert '<td>2</td><td data-align="right"></td>' in html
    assert html.endswith("<p>end</p>")


def test_links_lead_only_where_they_may(page):
    link = '<a href="{0}" target="_blank" rel="noopener noreferrer" title="{0}">{1}</a>'
    for text, html in [
        ("[x](https://a.example/b_(c))", link.format("https://a.example/b_(c)", "x")),
        ("see https://a.example/b, or not", "see " + link.format("https://a.example/b", "https://a.example/b") + ", or not"),
        ("(https://a.example/b_(c).)", "(" + link.format("https://a.example/b_(c)", "https://a.example/b_(c)") + ".)"),
        ("![alt](https://a.example/p.png)", link.format("https://a.example/p.png", "alt")),
        ("[x](javascript:alert(1))", "x"),
        ("[x](data:text/html,y)", "x"),
        ("[x](/v1/models)", "x"),
        ("[[a](https://a.example)](https://b.example)", link.format("https://b.example", "a")),
    ]:
        assert page.evaluate(RENDER, text) == f"<p>{html}</p>", text


def test_a_growing_text_is_what_the_whole_text_is(page):
    """However a text is cut while it comes, and none of its beginnings is an error."""
    text = "# T\n\nA **b** `c`\n\n- x\n  1. y\n\n```js\nlet a = `1`;\n```\n\n| a | b |\n| - | - |\n| 1 | 2 |\n\n> q\n\n[l](https://a.example) ~~d~~"
    same = """async (text) => {
      const { renderMarkdown } = await import('/web/markdown.js');
      const [growing, whole] = [document.createElement('div'), document.createElement('div')];
      for (let end = 0; end <= text.length; end++) {
        const once = document.createElement('div');
        renderMarkdown(growing, text.slice(0, end));
        renderMarkdown(once, text.slice(0, end));
        if (growing.innerHTML !== once.innerHTML) return end;
      }
      return null;
    }"""
    assert page.evaluate(same, text) is None


@pytest.mark.parametrize(
    "text",
    [
        "*a **b " * 2000,
        "[" * 5000,
        "`" * 5000 + "a",
        "> " * 3000 + "x",
        "- " * 3000 + "x",
        "[a](" * 2000,
        "|" * 4000 + "\n" + "|-" * 4000,
        # What took time by the square of its length: a quarter of an hour and more each.
        "https://a.example/" + ")" * 1_000_000,
        "a* " * 300_000,
        "# a" + " " * 1_000_000 + "b\u2028",
        "```" + " " * 1_000_000 + "`",
        "- " + " " * 1_000_000 + "\u2028",
        "a | b\n- " + " " * 1_000_000 + "x",
        "[a](" + " " * 1_000_000 + "x y",
    ],
    ids=range(14),
)
def test_a_hostile_text_is_drawn_all_the_same(page, text):
    assert page.evaluate(RENDER, text) != ""


def test_nothing_of_a_text_runs(page, context):
    """A conversation may hold anything; here as if a model had written it."""
    page.evaluate(
        """() => localStorage.setItem('lily.conversation.x', JSON.stringify({id: 'x', title: '<img src=x onerror=fail()>', updated: 1,
          messages: [{role: 'user', content: '<script>fail()</script>'},
                     {role: 'assistant', reasoning: '<img src=x onerror=fail()>', content: '<img src=x onerror=fail()> [x](javascript:fail())',
                      calls: [{id: 'c', name: '<b>f</b>', text: '<img src=x>'}], end: 'stop'}]}))"""
    )
    page.goto(page.url + "#x")
    page.reload()
    expect(page.locator(".bubble")).to_have_text("<script>fail()</script>")
    expect(page.locator(".prose")).to_contain_text("<img src=x onerror=fail()> x")
    expect(page.locator(".call-name")).to_have_text("<b>f</b>")
    assert page.locator("#thread img, #thread script, #conversations img").count() == 0
    # Nor would it, if it were HTML.
    blocked = page.evaluate("() => { try { document.body.innerHTML = '<p>x</p>'; return false; } catch { return true; } }")
    assert blocked
    context.complaints.clear()


def test_a_storage_that_others_wrote_into_does_no_harm(page):
    page.evaluate(
        """() => { for (const [key, value] of [['lily.conversation.a', '{'], ['lily.conversation.b', '{"id": "b", "messages": 3}'],
          ['lily.conversation.c', '{"id": "c", "messages": [null]}'], ['lily.settings', '[1']]) localStorage.setItem(key, value); }"""
    )
    page.goto(page.url + "#c")
    page.reload()
    expect(page.get_by_text("What shall we look at?")).to_be_visible()
    expect(page.locator("#conversations li")).to_have_count(0)


def test_light_and_dark(page, context):
    ground = "() => getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(ground)
    assert light != dark
    page.get_by_role("button", name="Settings", exact=True).click()
    page.locator("[name=theme]").select_option("light")
    assert page.evaluate(ground) == light
    page.locator("[name=theme]").select_option("dark")
    page.emulate_media(color_scheme="light")
    assert page.evaluate(ground) == dark
    page.reload()
    assert page.evaluate(ground) == dark


CONTRAST = """() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgb = (color, under) => {
    canvas.fillStyle = under; canvas.fillRect(0, 0, 1, 1);
    canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const luminance = (parts) => {
    const [r, g, b] = parts.map((part) => { const v = part / 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    const color = getComputedStyle(element).backgroundColor;
    const above = element.parentElement ? ground(element.parentElement) : 'white';
    return `rgb(${rgb(color, above).join(',')})`;
  };
  const poor = [];
  for (const element of document.querySelectorAll('body *')) {
    const text = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    if (!text || element.closest('dialog, svg, noscript, .visually-hidden, .skip') || !element.checkVisibility()) continue;
    const under = ground(element);
    const [one, other] = [rgb(getComputedStyle(element).color, under), rgb(under, 'white')].map(luminance);
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) poor.push(`${element.tagName} ${element.className} ${element.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return poor;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(page, scheme):
    """Contrast of at least 4.5 between a text and what is under it, as WCAG 2 has it (level AA)."""
    page.emulate_media(color_scheme=scheme)
    page.get_by_label("Message", exact=True).fill("How do I cook pepper?")
    page.keyboard.press("Enter")
    expect(page.locator(".message.reply")).to_have_attribute("aria-busy", "false")
    assert page.evaluate(CONTRAST) == []


def test_the_keyboard_reaches_everything(page):
    """By Tab from the message field back to itself, every visible control gets the focus, and each has a name."""
    page.get_by_label("Message", exact=True).fill("x")
    names = page.evaluate(
        """() => [...document.querySelectorAll('button, a[href], textarea, input')].filter((one) => one.checkVisibility())
            .map((one) => one.ariaLabel || one.labels?.[0]?.textContent || one.textContent)"""
    )
    assert all(name.strip() for name in names)
    reached = set()
    for _ in range(3 * len(names)):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("() => { const one = document.activeElement; return one.ariaLabel || one.labels?.[0]?.textContent || one.textContent; }")
        )
    assert set(names) <= reached
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("/")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.press("Shift+Enter")
    assert page.get_by_label("Message", exact=True).input_value() == "x\n"


def test_a_narrow_screen(page):
    page.set_viewport_size({"width": 390, "height": 800})
    sidebar = page.get_by_role("navigation", name="Conversations")
    expect(sidebar).to_be_hidden()
    page.get_by_role("button", name="Conversations").click()
    expect(sidebar).to_be_visible()
    page.get_by_role("button", name="New conversation").click()
    expect(sidebar).to_be_hidden()
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")


def test_copying(page):
    page.get_by_label("Message", exact=True).fill("Hello!")
    page.keyboard.press("Enter")
    expect(page.locator(".message.reply")).to_have_attribute("aria-busy", "false")
    page.get_by_role("button", name="Copy this message").click()
    expect(page.locator("#announcements")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "Hello!"


@pytest.mark.skipif("SCREENSHOTS" not in os.environ, reason="pictures are for people: set SCREENSHOTS to a folder")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1180, 390])
def test_pictures(page, scheme, width):
    folder = Path(os.environ["SCREENSHOTS"])
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 820})
    expect(page.locator("#model")).to_have_text("lily-tiny")
    page.screenshot(path=folder / f"{scheme}-{width}-welcome.png")
    for question in ["What is 38 + 57?", "How do I cook pepper?"]:
        page.get_by_label("Message", exact=True).fill(question)
        page.keyboard.press("Enter")
        expect(page.locator(".message.reply").last).to_have_attribute("aria-busy", "false")
    page.locator("summary").first.click()
    page.screenshot(path=folder / f"{scheme}-{width}-chat.png")
    page.get_by_role("button", name="Settings", exact=True).click()
    page.screenshot(path=folder / f"{scheme}-{width}-settings.png")
