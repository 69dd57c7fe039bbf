//! A page in a real browser: two widths, by day and by night, without network.

use std::path::Path;
use std::process::Command;

/// A desktop and a phone.
const WIDTHS: [u32; 2] = [1280, 390];
/// As Chromium numbers them.
const SCHEMES: [(&str, u32); 2] = [("light", 1), ("dark", 0)];

/// What was seen of a page.
pub(crate) struct Look {
    pub(crate) width: u32,
    pub(crate) scheme: &'static str,
    /// Pictures shown, not only there.
    pub(crate) pictures: u32,
    pub(crate) screenshot: Vec<u8>,
}

impl std::fmt::Debug for Look {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} pictures at {} {}",
            self.pictures, self.width, self.scheme
        )
    }
}

/// Opens the page in every way; fails if it scrolls sideways, a label is cut off, or the browser complains.
pub(crate) fn look_at(page: &Path) -> Vec<Look> {
    let mut looks = Vec::new();
    for width in WIDTHS {
        let (wide, pictures) = measured(page, width);
        assert_eq!(wide, width, "{} scrolls sideways", page.display());
        for (scheme, number) in SCHEMES {
            let directory = tempfile::tempdir().unwrap();
            let picture = directory.path().join("picture.png");
            let (_, errors) = chromium(&[
                format!("--blink-settings=preferredColorScheme={number}"),
                format!("--window-size={width},2400"),
                format!("--screenshot={}", picture.display()),
                format!("file://{}", page.display()),
            ]);
            assert!(!errors.contains("CONSOLE"), "{errors}");
            let screenshot = std::fs::read(&picture).unwrap();
            assert!(screenshot.len() > 20_000, "the page is empty");
            looks.push(Look {
                width,
                scheme,
                pictures,
                screenshot,
            });
        }
    }
    looks
}

fn chromium(arguments: &[String]) -> (String, String) {
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
        ])
        .args([
            "--enable-logging=stderr",
            "--host-resolver-rules=MAP * ~NOTFOUND",
        ])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(arguments)
        .output()
        .expect("chromium is installed by scripts/setup");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// Looks at the page from a page around it: its own policy forbids scripts.
fn measured(page: &Path, width: u32) -> (u32, u32) {
    let around = page.with_file_name(format!("around-{width}.html"));
    let name = page.file_name().unwrap().to_str().unwrap();
    let text = format!(
        "<body><iframe id=f src='{name}' style='width:{width}px;height:900px;border:0'></iframe><script>\
         onload=()=>{{const d=document.getElementById('f').contentDocument;\
         const shown=[...d.querySelectorAll('svg')].filter(s=>s.getBoundingClientRect().width>0);\
         const isCut=(t,s)=>{{const a=t.getBoundingClientRect(),b=s.getBoundingClientRect();\
         return a.left<b.left-1||a.right>b.right+1||a.top<b.top-1||a.bottom>b.bottom+1}};\
         const cut=shown.flatMap(s=>[...s.querySelectorAll('text')].filter(t=>isCut(t,s)).map(t=>t.textContent));\
         document.body.innerHTML='<p>wide='+d.documentElement.scrollWidth+' svgs='+shown.length+' cut='+cut.length+'</p>';\
         document.body.append(cut.join('; '))}}</script>"
    );
    std::fs::write(&around, text).unwrap();
    let (dom, _) = chromium(&[
        "--allow-file-access-from-files".to_owned(),
        "--dump-dom".to_owned(),
        format!("file://{}", around.display()),
    ]);
    let number = |key: &str| -> u32 {
        let rest = dom
            .split(key)
            .nth(1)
            .unwrap_or_else(|| panic!("no {key} in {dom}"));
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap()
    };
    assert_eq!(number("cut="), 0, "labels are cut off: {dom}");
    (number("wide="), number("svgs="))
}
