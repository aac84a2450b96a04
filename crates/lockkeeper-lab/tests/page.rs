//! The report in a browser: it says nothing on the console, every chart is drawn, and nothing is wider than a
//! phone.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::path::Path;
use std::process::Command;

use lockkeeper_lab::{Findings, Setting, catalogue, report, run};
use tempfile::TempDir;

/// Writes into the page what only the browser knows: how many pictures there are, how many of them have no
/// size, and how wide the page and the window are.
const PROBE: &str = "<script>addEventListener('load', () => {
    document.querySelectorAll('details').forEach(part => part.open = true);
    const pictures = [...document.querySelectorAll('svg')];
    const drawn = pictures.filter(picture => {
        const size = picture.getBoundingClientRect();
        const inside = picture.getBBox();
        return size.width > 100 && size.height > 20 && inside.width > 20 && inside.height > 10;
    });
    const root = document.documentElement;
    root.dataset.found = [pictures.length, drawn.length, root.scrollWidth, innerWidth].join(' ');
});</script>";

async fn findings() -> Findings {
    let chosen: Vec<_> = ["oversell", "check-then-delete"]
        .iter()
        .map(|name| catalogue::find(name).unwrap())
        .collect();
    run(&chosen, &Setting::new(1, None), &mut |_| {}).await
}

/// A window of a browser cannot be as narrow as a phone, a frame can. What the probe found is copied to where it
/// is printed.
fn framed(page: &str, width: u32) -> String {
    let inside = page.replace('&', "&amp;").replace('"', "&quot;");
    format!(
        "<!doctype html><title>A frame</title><body style=\"margin:0\"><iframe width=\"{width}\" \
         height=\"900\" style=\"border:0\" srcdoc=\"{inside}\"></iframe><script>\
         addEventListener('load', () => setTimeout(() => document.body.dataset.copied = \
         frames[0].document.documentElement.dataset.found, 500))</script>"
    )
}

/// What the browser has made of a page, and what it has said.
fn open(page: &Path, dir: &Path) -> (String, String) {
    let output = Command::new("chromium")
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"])
        .arg("--window-size=1400,1000")
        .arg(format!("--user-data-dir={}", dir.join("profile").display()))
        .args(["--virtual-time-budget=3000", "--dump-dom"])
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("chromium: apt-get install chromium");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[tokio::test]
async fn a_browser_draws_every_chart_and_has_nothing_to_say() {
    let findings = findings().await;
    assert!(findings.wrong().is_empty(), "{:?}", findings.wrong());
    let text = report::page(&findings);
    let variants = findings.experiments.iter().map(|finding| finding.variants.len()).sum::<usize>();
    // A picture for each variant, and two charts for each experiment.
    let pictures = variants + 2 * findings.experiments.len();
    assert_eq!(text.matches("<svg").count(), pictures);

    let dir = TempDir::new().unwrap();
    let page = dir.path().join("page.html");
    let text = text.replace("</body>", &format!("{PROBE}</body>"));
    for width in [390, 1280] {
        std::fs::write(&page, framed(&text, width)).unwrap();
        let (dom, said) = open(&page, dir.path());
        let console: Vec<_> = said.lines().filter(|line| line.contains("CONSOLE")).collect();
        assert!(console.is_empty(), "{console:#?}");
        let found = dom.split("data-copied=\"").nth(1).and_then(|rest| rest.split('"').next());
        let found = found.unwrap_or_else(|| panic!("no probe: {said}"));
        let found: Vec<usize> = found.split(' ').map(|n| n.parse().unwrap()).collect();
        let [there, drawn, page_width, window] = found[..] else { panic!("{found:?}") };
        assert_eq!((there, drawn), (pictures, pictures), "at {width}");
        assert!(page_width <= window, "{page_width} is wider than {window}");
        assert_eq!(window, usize::try_from(width).unwrap());
    }
}
