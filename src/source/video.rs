//! Video files, decoded with the programs `ffprobe` (metadata) and `ffmpeg` (frames).
//!
//! `ffmpeg` writes raw RGB frames to a pipe and, through its `showinfo` filter, one line per frame
//! with its presentation time to standard error; frames are neither duplicated nor dropped to match
//! a frame rate.

use super::calibration::fit_calibration;
use super::stream::{About, Stream};
use super::{SourceError, SourceFrame, SourceOptions};
use crate::image::{MAX_SIDE, RgbImage};
use crate::newest;
use crate::time::Stamp;
use heapless::Deque;
use serde::Deserialize;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Number of message lines kept for an error.
const KEPT_LINES: usize = 4;

/// Options for both programs, before the input: only the file itself is read. Playlists (HLS, DASH, concat) could make
/// them read any other file, so only formats that hold the frames themselves are allowed.
const ONLY_THE_FILE: [&str; 4] = [
    "-protocol_whitelist",
    "file,pipe",
    "-format_whitelist",
    "mov,mp4,matroska,webm,avi,mpeg,mpegts,mpegvideo,m4v,h264,hevc,flv,asf,ogg",
];

/// Stamps that may wait for their frames. `ffmpeg` is at most as many frames ahead as it has buffers before the pipe,
/// some tens; with more the thread that reads them waits.
const STAMPS: usize = 256;

/// The last lines of the program's messages.
type LastLines = Arc<Mutex<Deque<String, KEPT_LINES>>>;

/// Paths of the programs; the defaults are found through `PATH`.
#[derive(Debug, Clone)]
pub(super) struct Programs {
    pub ffmpeg: PathBuf,
    pub ffprobe: PathBuf,
}

impl Default for Programs {
    fn default() -> Self {
        Self {
            ffmpeg: PathBuf::from("ffmpeg"),
            ffprobe: PathBuf::from("ffprobe"),
        }
    }
}

pub(super) fn open(
    path: &Path,
    programs: &Programs,
    options: &SourceOptions,
) -> Result<Stream, SourceError> {
    let (size, total) = probe(path, programs)?;
    if let Some(total) = total
        && options.start >= total
    {
        return Err(SourceError::Selection {
            option: "start",
            expected: format!("less than the number of frames, {total}"),
            found: options.start,
        });
    }
    let calibration = options
        .calibration
        .map(|calibration| {
            fit_calibration(&calibration, size).map_err(|e| {
                SourceError::content(
                    path,
                    format!(
                        "frames of {}×{} pixels, which the calibration is for",
                        calibration.width, calibration.height
                    ),
                    format!("{}×{} ({e})", size.0, size.1),
                )
            })
        })
        .transpose()?;
    let end = match (options.end, total) {
        (Some(end), Some(total)) => Some(end.min(total)),
        (end, total) => end.or(total),
    };
    let count = end.map(|end| (end - options.start).div_ceil(options.stride));
    // Only an explicit end stops the decoder: containers may miscount.
    let max_frames = options.end.and(count);
    let frames = Frames::start(path, programs, size, options, max_frames)?;
    let child = Arc::clone(&frames.child);
    let about = About {
        description: match (count, total) {
            (Some(count), Some(total)) if count != total => {
                format!("video, {count} of {total} frames")
            }
            (Some(count), _) => format!("video, {}", super::frames(count)),
            (None, _) => "video".to_owned(),
        },
        count,
        calibration,
        depth_camera: None,
        always_undistort: false,
        ground_truth: None,
        camera_frame: None,
    };
    Stream::new(about, frames, Some(Box::new(move || kill(&child))))
}

#[derive(Debug, Deserialize)]
struct Probe {
    #[serde(default)]
    streams: Vec<ProbeStream>,
}

#[derive(Debug, Deserialize)]
struct ProbeStream {
    width: Option<usize>,
    height: Option<usize>,
    nb_frames: Option<String>,
    #[serde(default)]
    side_data_list: Vec<SideData>,
}

#[derive(Debug, Deserialize)]
struct SideData {
    rotation: Option<f64>,
}

/// Display size, and the number of frames if the container records it.
fn probe(path: &Path, programs: &Programs) -> Result<((usize, usize), Option<usize>), SourceError> {
    let output = Command::new(&programs.ffprobe)
        .args(["-v", "error", "-select_streams", "v:0", "-of", "json"])
        .args([
            "-show_entries",
            "stream=width,height,nb_frames:stream_side_data=rotation",
        ])
        .args(ONLY_THE_FILE)
        .arg(plain(path))
        .stdin(Stdio::null())
        .output()
        .map_err(|e| missing("ffprobe", &e))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let last = text.lines().rev().find(|l| !l.trim().is_empty());
        return Err(SourceError::content(
            path,
            "a video file that ffprobe can read, not a playlist",
            last.unwrap_or("a file that ffprobe rejects without a message"),
        ));
    }
    let probe: Probe =
        serde_json::from_slice(&output.stdout).map_err(|e| SourceError::Program {
            program: "ffprobe",
            message: format!("cannot parse its output: {e}"),
        })?;
    let Some(stream) = probe.streams.first() else {
        return Err(SourceError::content(path, "a video stream", "none"));
    };
    let (Some(width), Some(height)) = (stream.width, stream.height) else {
        return Err(SourceError::content(
            path,
            "a video stream with a size",
            "none",
        ));
    };
    if !(1..=MAX_SIDE).contains(&width) || !(1..=MAX_SIDE).contains(&height) {
        let expected = "frames of 1 to 16384 pixels a side";
        return Err(SourceError::content(
            path,
            expected,
            format!("{width}×{height}"),
        ));
    }
    let turned = stream
        .side_data_list
        .iter()
        .filter_map(|s| s.rotation)
        .any(|r| (r.abs() % 180.0 - 90.0).abs() < 1.0);
    let count = stream.nb_frames.as_deref().and_then(|n| n.parse().ok());
    Ok((
        if turned {
            (height, width)
        } else {
            (width, height)
        },
        count.filter(|&n| n > 0),
    ))
}

/// A path that cannot be mistaken for an option or a protocol.
fn plain(path: &Path) -> OsString {
    if path.is_absolute() {
        return path.as_os_str().to_owned();
    }
    Path::new(".").join(path).into_os_string()
}

fn missing(program: &'static str, error: &std::io::Error) -> SourceError {
    let message = if error.kind() == ErrorKind::NotFound {
        "not found, but needed to read video files: install FFmpeg (https://ffmpeg.org, or your \
         system's package `ffmpeg`) so that it is on the PATH, or turn the video into a folder of \
         images"
            .to_owned()
    } else {
        format!("cannot be started: {error}")
    };
    SourceError::Program { program, message }
}

/// The option that preserves frame timing: `-fps_mode` since 5.1, `-vsync` before.
fn passthrough(programs: &Programs) -> Result<&'static str, SourceError> {
    let output = Command::new(&programs.ffmpeg)
        .arg("-version")
        .stdin(Stdio::null())
        .output()
        .map_err(|e| missing("ffmpeg", &e))?;
    let text = String::from_utf8_lossy(&output.stdout);
    // "ffmpeg version 5.1.6-0+deb12u1 Copyright …"; builds from git have names such as N-109468.
    let major: Option<u32> = text.split_whitespace().nth(2).and_then(|version| {
        let version = version.trim_start_matches('n');
        version.split(['.', '-']).next()?.parse().ok()
    });
    Ok(match major {
        Some(major) if major <= 5 => "-vsync",
        _ => "-fps_mode",
    })
}

fn kill(child: &Mutex<Child>) {
    let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
    // The process may have exited already.
    let _ = child.kill();
    let _ = child.wait();
}

/// Time of a frame in units of the time base; `None` if it has none.
type Ticks = Option<i64>;

/// Messages from the thread that reads ffmpeg's standard error.
enum Message {
    TimeBase(i64, i64),
    Frame(Ticks, Option<(usize, usize)>),
    Other(String),
}

/// The decoder's frames. Dropping it ends the process.
struct Frames {
    path: PathBuf,
    child: Arc<Mutex<Child>>,
    pixels: ChildStdout,
    messages: Receiver<Message>,
    size: (usize, usize),
    /// Numerator and denominator of the tick length in seconds.
    time_base: Option<(i64, i64)>,
    next_index: usize,
    stride: usize,
    last: Option<Stamp>,
    last_lines: LastLines,
    ended: bool,
}

impl Frames {
    fn start(
        path: &Path,
        programs: &Programs,
        size: (usize, usize),
        options: &SourceOptions,
        max_frames: Option<usize>,
    ) -> Result<Self, SourceError> {
        let (start, stride) = (options.start, options.stride);
        let mut command = Command::new(&programs.ffmpeg);
        command
            .args([
                "-hide_banner",
                "-nostats",
                "-nostdin",
                "-loglevel",
                "info",
            ])
            .args(ONLY_THE_FILE)
            .arg("-i")
            .arg(plain(path))
            .args(["-map", "0:v:0", "-vf"])
            .arg(format!(
                "select=gte(n\\,{start})*not(mod(n-{start}\\,{stride})),showinfo=checksum=0,scale={}:{}",
                size.0, size.1
            ))
            .args([passthrough(programs)?, "passthrough"]);
        if let Some(max_frames) = max_frames {
            command.args(["-frames:v", &max_frames.to_string()]);
        }
        let mut child = command
            .args(["-f", "rawvideo", "-pix_fmt", "rgb24", "-"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| missing("ffmpeg", &e))?;
        let (pixels, stderr) = (child.stdout.take(), child.stderr.take());
        let child = Arc::new(Mutex::new(child));
        let fail = |message: &str| {
            kill(&child);
            SourceError::Program {
                program: "ffmpeg",
                message: message.to_owned(),
            }
        };
        let (Some(pixels), Some(stderr)) = (pixels, stderr) else {
            return Err(fail("cannot read its output"));
        };
        let (sender, messages) = sync_channel(STAMPS);
        let last_lines = LastLines::default();
        let lines = Arc::clone(&last_lines);
        std::thread::Builder::new()
            .name("ffmpeg messages".to_owned())
            .spawn(move || read_messages(stderr, &sender, &lines))
            .map_err(|e| {
                fail(&format!(
                    "cannot start the thread that reads its messages: {e}"
                ))
            })?;
        Ok(Self {
            path: path.to_owned(),
            child,
            pixels,
            messages,
            size,
            time_base: None,
            next_index: start,
            stride,
            last: None,
            last_lines,
            ended: false,
        })
    }

    /// The pixels of a frame; `None` at the end, or an error if the frame was incomplete.
    fn read_pixels(&mut self) -> Result<Option<RgbImage>, SourceError> {
        let mut image = RgbImage::new(self.size.0, self.size.1);
        let mut at = 0;
        while at < image.data.len() {
            match self.pixels.read(&mut image.data[at..]) {
                Ok(0) => break,
                Ok(n) => at += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(cause) => {
                    let path = self.path.clone();
                    return Err(SourceError::Io { path, cause });
                }
            }
        }
        if at == image.data.len() {
            return Ok(Some(image));
        }
        // At the end, check whether the program succeeded.
        while let Ok(message) = self.messages.recv() {
            self.note(message);
        }
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let well = child.wait().is_ok_and(|status| status.success());
        if well && at == 0 {
            return Ok(None);
        }
        let lines = self.last_lines.lock();
        let lines = lines.unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        Err(SourceError::content(
            &self.path,
            "a video that ffmpeg can decode to its end",
            format!(
                "a failure after frame {}: {}",
                self.next_index,
                lines.join("; ")
            ),
        ))
    }

    /// Records a message; returns time and size if it belongs to a frame.
    fn note(&mut self, message: Message) -> Option<(Ticks, Option<(usize, usize)>)> {
        match message {
            Message::Frame(ticks, size) => return Some((ticks, size)),
            Message::TimeBase(num, den) => self.time_base = Some((num, den)),
            // The thread that reads them keeps the last ones.
            Message::Other(_) => {}
        }
        None
    }

    /// The stamp of the frame whose pixels were read last; its line precedes them.
    fn read_stamp(&mut self) -> Result<Stamp, SourceError> {
        let (ticks, size) = loop {
            let Ok(message) = self.messages.recv() else {
                break (None, None);
            };
            if let Some(frame) = self.note(message) {
                break frame;
            }
        };
        if let Some(size) = size
            && size != self.size
        {
            return Err(SourceError::content(
                &self.path,
                format!(
                    "frames of {}×{} pixels, the size of the first",
                    self.size.0, self.size.1
                ),
                format!("{}×{} on frame {}", size.0, size.1, self.next_index),
            ));
        }
        let (Some(ticks), Some((num, den))) = (ticks, self.time_base) else {
            return Err(SourceError::content(
                &self.path,
                "a presentation time on each frame",
                format!("none on frame {}", self.next_index),
            ));
        };
        let nanos = i128::from(ticks) * i128::from(num) * 1_000_000_000 / i128::from(den);
        let stamp = i64::try_from(nanos).map(|nanos| Stamp { nanos });
        match (stamp, self.last) {
            (Ok(stamp), last) if last.is_none_or(|last| last < stamp) => {
                self.last = Some(stamp);
                Ok(stamp)
            }
            (stamp, last) => Err(SourceError::content(
                &self.path,
                format!(
                    "a time after {}, the frame before it",
                    last.unwrap_or_default()
                ),
                match stamp {
                    Ok(stamp) => format!("{stamp} on frame {}", self.next_index),
                    Err(_) => format!("{ticks} ticks on frame {}", self.next_index),
                },
            )),
        }
    }
}

impl Iterator for Frames {
    type Item = Result<SourceFrame, SourceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let image = match self.read_pixels() {
            Ok(Some(image)) => image,
            Ok(None) => {
                self.ended = true;
                return None;
            }
            Err(e) => {
                self.ended = true;
                return Some(Err(e));
            }
        };
        let stamp = self.read_stamp();
        let index = self.next_index;
        self.next_index += self.stride;
        Some(stamp.map(|stamp| SourceFrame {
            index,
            stamp,
            origin: self.path.clone(),
            image,
            depth: None,
        }))
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        kill(&self.child);
    }
}

/// Reads ffmpeg's messages to their end, so that ffmpeg never blocks on a full pipe.
fn read_messages(stderr: impl Read, sender: &SyncSender<Message>, last_lines: &LastLines) {
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line);
        match parse_message(text.trim()) {
            Some(Message::Other(line)) => {
                let mut lines = last_lines.lock().unwrap_or_else(PoisonError::into_inner);
                newest::push(&mut lines, line);
            }
            // Without a receiver the reading goes on nevertheless.
            Some(message) => drop(sender.send(message)),
            None => {}
        }
    }
}

/// `[Parsed_showinfo_1 @ 0x…] config in time_base: 1/15360, frame_rate: 30/1`
/// `[Parsed_showinfo_1 @ 0x…] n:   3 pts:   1536 pts_time:0.1 … s:640x480 …`
fn parse_message(line: &str) -> Option<Message> {
    let Some((_, info)) = line
        .split_once("showinfo")
        .and_then(|(_, rest)| rest.split_once(']'))
    else {
        return (!line.is_empty()).then(|| Message::Other(line.to_owned()));
    };
    let info = info.trim();
    if let Some(rest) = info.strip_prefix("config in time_base:") {
        let (num, rest) = rest.split_once('/')?;
        let den = rest.split(',').next()?;
        let (num, den): (i64, i64) = (num.trim().parse().ok()?, den.trim().parse().ok()?);
        return (num > 0 && den > 0).then_some(Message::TimeBase(num, den));
    }
    if info.starts_with("n:") {
        let (_, rest) = info.split_once("pts:")?;
        let ticks = rest.split_whitespace().next()?.parse().ok();
        let size = info.split_whitespace().find_map(|field| {
            let (width, height) = field.strip_prefix("s:")?.split_once('x')?;
            Some((width.parse().ok()?, height.parse().ok()?))
        });
        return Some(Message::Frame(ticks, size));
    }
    None
}

#[cfg(test)]
#[path = "video_tests.rs"]
mod tests;
