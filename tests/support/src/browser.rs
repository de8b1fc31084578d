//! A real Chromium without a window, driven by its DevTools protocol over a pipe.

use crate::patience::patience;
use crate::skip::{Need, skip};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Maximum time for a command, in seconds.
const PATIENCE: u64 = 60;

/// A browser, which ends when it is dropped.
pub struct Browser {
    process: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    last: u64,
    /// Its settings and caches.
    _folder: tempfile::TempDir,
}

/// A tab of a browser.
#[derive(Debug, Clone)]
pub struct Tab {
    session: String,
    target: String,
}

/// Pixels of a page, RGB.
pub struct Picture {
    pub width: usize,
    pub height: usize,
    pub pixels: Vec<[u8; 3]>,
}

/// The program: MAST3R_CHROMIUM, or `chromium`.
pub fn chromium() -> Option<String> {
    let named = std::env::var("MAST3R_CHROMIUM").ok();
    let program = named.unwrap_or_else(|| "chromium".into());
    let test = Command::new(&program).arg("--version").output();
    if test.is_ok_and(|output| output.status.success()) {
        return Some(program);
    }
    skip(Need::Chromium, format!("{program} cannot be run"));
    None
}

impl Browser {
    /// Starts the browser; `None` after a skip.
    pub fn start() -> Option<Self> {
        let program = chromium()?;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            // Drawn by the processor: there is no GPU on the machines that test.
            "--use-angle=swiftshader",
            "--enable-unsafe-swiftshader",
            "--remote-debugging-pipe",
            "--window-size=1280,800",
        ];
        // The protocol is on the descriptors 3 and 4.
        let mut process = Command::new("sh")
            .args([
                "-c",
                "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null",
            ])
            .arg(program)
            .args(flags)
            .arg(format!("--user-data-dir={}", folder.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let to = process.stdin.take().expect("a pipe");
        let mut out = BufReader::new(process.stdout.take().expect("a pipe"));
        let (sender, from) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while out.read_until(0, &mut message).is_ok_and(|n| n > 0) {
                message.pop();
                let parsed = serde_json::from_slice(&message);
                if parsed.is_ok_and(|value| sender.send(value).is_err()) {
                    return;
                }
                message.clear();
            }
        });
        Some(Self {
            process,
            to,
            from,
            last: 0,
            _folder: folder,
        })
    }

    /// Process number of the browser.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a command, to a tab or the browser itself, and returns its result.
    pub fn call(&mut self, tab: Option<&Tab>, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let mut command = json!({"id": self.last, "method": method, "params": parameters});
        if let Some(tab) = tab {
            command["sessionId"] = json!(tab.session);
        }
        let text = command.to_string() + "\0";
        self.to
            .write_all(text.as_bytes())
            .expect("the browser reads");
        let deadline = Instant::now() + patience(PATIENCE);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.from.recv_timeout(left) {
                Ok(answer) if answer["id"] == self.last => {
                    assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                    return answer["result"].clone();
                }
                // An event; no test needs any.
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => panic!("{method} has no answer"),
                Err(RecvTimeoutError::Disconnected) => panic!("the browser has ended ({method})"),
            }
        }
    }

    /// Opens a page.
    pub fn open(&mut self, address: &str) -> Tab {
        let made = self.call(None, "Target.createTarget", json!({"url": address}));
        let target = made["targetId"].as_str().expect("an id").to_owned();
        let attach = json!({"targetId": target, "flatten": true});
        let attached = self.call(None, "Target.attachToTarget", attach);
        let session = attached["sessionId"].as_str().expect("an id").to_owned();
        Tab { session, target }
    }

    /// Closes a page.
    pub fn close(&mut self, tab: &Tab) {
        self.call(None, "Target.closeTarget", json!({"targetId": tab.target}));
    }

    /// The value of an expression in the page; promises are waited for.
    pub fn eval(&mut self, tab: &Tab, expression: &str) -> Value {
        let parameters =
            json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let answer = self.call(Some(tab), "Runtime.evaluate", parameters);
        let failure = &answer["exceptionDetails"];
        assert!(failure.is_null(), "{expression}: {failure}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true in the page; while it is loading, an expression may fail.
    pub fn wait(&mut self, tab: &Tab, what: &str, expression: &str) {
        let deadline = Instant::now() + patience(PATIENCE);
        let safe = format!(
            "(() => {{ try {{ return ({expression}) === true; }} catch {{ return false; }} }})()"
        );
        while self.eval(tab, &safe) != json!(true) {
            assert!(
                Instant::now() < deadline,
                "waited in vain for {what}: {expression}; the page says: {}",
                self.eval(tab, "document.body?.innerText")
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What the page looks like, as a PNG.
    pub fn screenshot(&mut self, tab: &Tab) -> Vec<u8> {
        let answer = self.call(
            Some(tab),
            "Page.captureScreenshot",
            json!({"format": "png"}),
        );
        let data = answer["data"].as_str().expect("an image");
        STANDARD.decode(data).expect("base64")
    }

    /// Pixels of a canvas of the page, read before the browser shows the image: WebGL may forget it then.
    pub fn canvas(&mut self, tab: &Tab, id: &str) -> Picture {
        let read = format!(
            "new Promise((read) => requestAnimationFrame(() => {{ \
             const from = document.getElementById('{id}'); const to = document.createElement('canvas'); \
             [to.width, to.height] = [from.width, from.height]; const c = to.getContext('2d'); c.drawImage(from, 0, 0); \
             const data = c.getImageData(0, 0, to.width, to.height).data; let text = ''; \
             for (let k = 0; k < data.length; k += 4) text += String.fromCharCode(data[k], data[k + 1], data[k + 2]); \
             read([to.width, to.height, btoa(text)]); }}))"
        );
        let value = self.eval(tab, &read);
        let side = |k: usize| value[k].as_u64().expect("a size") as usize;
        let bytes = STANDARD
            .decode(value[2].as_str().expect("pixels"))
            .expect("base64");
        Picture {
            width: side(0),
            height: side(1),
            pixels: bytes.as_chunks::<3>().0.to_vec(),
        }
    }

    /// Makes the tab the size of a phone, with fingers.
    pub fn phone(&mut self, tab: &Tab) {
        let screen = json!({"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": true});
        self.call(Some(tab), "Emulation.setDeviceMetricsOverride", screen);
        let touch = json!({"enabled": true, "maxTouchPoints": 5});
        self.call(Some(tab), "Emulation.setTouchEmulationEnabled", touch);
    }

    /// An event of the mouse.
    pub fn mouse(&mut self, tab: &Tab, kind: &str, (x, y): (f64, f64), more: Value) {
        let mut event = json!({"type": kind, "x": x, "y": y});
        for (name, value) in more.as_object().into_iter().flatten() {
            event[name] = value.clone();
        }
        self.call(Some(tab), "Input.dispatchMouseEvent", event);
    }

    /// An event of fingers on the screen.
    pub fn touch(&mut self, tab: &Tab, kind: &str, fingers: &[(f64, f64)]) {
        let points = fingers.iter().enumerate();
        let points: Vec<Value> = points
            .map(|(id, (x, y))| json!({"x": x, "y": y, "id": id}))
            .collect();
        let event = json!({"type": kind, "touchPoints": points});
        self.call(Some(tab), "Input.dispatchTouchEvent", event);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let close = json!({"id": 0, "method": "Browser.close"}).to_string() + "\0";
        let _ = self.to.write_all(close.as_bytes());
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if matches!(self.process.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Picture {
    /// Number of pixels that differ from the background of the map.
    pub fn drawn(&self) -> usize {
        let differs = |p: &&[u8; 3]| p.iter().zip([11, 14, 19]).any(|(a, b)| a.abs_diff(b) > 12);
        self.pixels.iter().filter(differs).count()
    }

    /// Number of different colours.
    pub fn colors(&self) -> usize {
        let all: std::collections::HashSet<_> = self.pixels.iter().collect();
        all.len()
    }
}
