//! The thread that writes a map's file.

use super::StoreError;
use super::coding::Coder;
use super::file::{self, Owned};
use super::hand_over::{Job, Key, Shared, State, lock};
use super::on_disk::OnDisk;
use super::rows::{Table, seal};
use crate::map::saved::Header;
use rusqlite::params;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Time after which what was written is made to last.
const COMMIT: Duration = Duration::from_secs(1);

/// How often the thread looks for new poses.
const TICK: Duration = Duration::from_millis(200);

/// Time between attempts while the file cannot be written.
const RETRY: Duration = Duration::from_secs(2);

/// Time between messages in the log about the same failure.
const REMIND: Duration = Duration::from_secs(60);

fn set_session(owned: &Owned, text: &str) -> Result<(), StoreError> {
    let put = "INSERT OR REPLACE INTO meta (name, content) VALUES ('session', ?1)";
    let set = owned.database.connection.execute(put, [text.as_bytes()]);
    set.map(|_| ()).map_err(|e| owned.database.failed(e))
}

/// What the thread works with.
pub struct Work {
    owned: Owned,
    header: Header,
    disk: OnDisk,
    /// The map that the file holds, and the one that it is to hold.
    epoch: u64,
    wanted_epoch: u64,
    state: Option<State>,
    coder: Coder,
    row: Vec<u8>,
    shared: Arc<Shared>,
    /// Content in the open transaction.
    uncommitted: Vec<Key>,
    /// When the open transaction was begun.
    begun: Option<Instant>,
    committed: Instant,
    /// When to try again after a failure.
    retry: Option<Instant>,
    /// The failure told last, and when.
    told: Option<(String, Instant)>,
}

impl Work {
    /// Opens a map to continue it; also returns whether the last session ended without closing it.
    ///
    /// # Errors
    /// If the file is not a map, is in use or damaged, or cannot be written to.
    pub fn new(path: &Path, shared: &Arc<Shared>) -> Result<(Self, bool), StoreError> {
        let owned = file::open(path)?;
        let header = owned.database.header()?;
        let disk = OnDisk::read(&owned.database)?;
        let session = owned.database.meta("session")?;
        let crashed = session.is_some_and(|text| text.starts_with(b"open "));
        set_session(&owned, &format!("open process {}", std::process::id()))?;
        let work = Self {
            owned,
            header,
            disk,
            epoch: 0,
            wanted_epoch: 0,
            state: None,
            coder: Coder::default(),
            row: Vec::new(),
            shared: Arc::clone(shared),
            uncommitted: Vec::new(),
            begun: None,
            committed: Instant::now(),
            retry: None,
            told: None,
        };
        Ok((work, crashed))
    }

    /// The description of the map.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Writes what comes until the map drops its end of the queue, then closes the file.
    pub fn run(&mut self, inbox: &Receiver<Job>) {
        loop {
            match inbox.recv_timeout(TICK) {
                Ok(job) => {
                    self.shared.waiting.fetch_sub(1, Ordering::AcqRel);
                    self.take(job);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let begun = self.begun.is_some_and(|begun| begun.elapsed() >= COMMIT);
            let has_state = || lock(&self.shared.state).is_some() || self.retry.is_some();
            if begun || (self.committed.elapsed() >= COMMIT && self.may_try() && has_state()) {
                self.commit();
            }
        }
        let committed = self.commit();
        if committed && let Err(error) = self.close() {
            self.fail(&error);
        }
    }

    fn may_try(&self) -> bool {
        self.retry.is_none_or(|retry| Instant::now() >= retry)
    }

    fn take(&mut self, job: Job) {
        match job {
            Job::Keyframe { id, whole, content } => {
                let key = Key::Keyframe { id, whole };
                let key_of_row = u64::from(id);
                self.row.clear();
                self.coder.pack_points(&content, &mut self.row);
                self.put("points", Table::Points, key_of_row, key);
                if whole {
                    self.row.clear();
                    self.coder.pack_image(&content, &mut self.row);
                    self.put("image", Table::Image, key_of_row, key);
                }
            }
            Job::Edge { number, content } => {
                self.row.clear();
                self.coder
                    .pack_matches(&content, &self.header, &mut self.row);
                self.put("matches", Table::Matches, number, Key::Edge(number));
            }
            Job::Clear(epoch) => {
                // What belongs to the discarded map is not mixed with the next one.
                if self.begun.is_some() {
                    self.commit();
                }
                self.wanted_epoch = epoch;
            }
            Job::Wake => _ = self.may_try() && self.commit(),
            Job::Flush(reply) => {
                let done = match self.commit() {
                    true => Ok(()),
                    false => Err(lock(&self.shared.failure).clone().unwrap_or_default()),
                };
                // The sender may have given up.
                let _ = reply.send(done);
            }
        }
    }

    /// Writes the packed row, which returns to the sender if that fails.
    fn put(&mut self, name: &str, table: Table, id: u64, key: Key) {
        if !self.may_try() {
            self.give_back(key);
            return;
        }
        seal(table, id, &mut self.row);
        self.uncommitted.push(key);
        let put = format!("INSERT OR REPLACE INTO {name} (id, content) VALUES (?1, ?2)");
        let written = self.begin().and_then(|()| {
            let database = &self.owned.database;
            let written = database
                .connection
                .execute(&put, params![id.cast_signed(), self.row]);
            written.map_err(|e| database.failed(e))
        });
        match written {
            Ok(_) => self.disk.note(table, id),
            Err(error) => self.fail(&error),
        }
    }

    fn give_back(&self, key: Key) {
        let mut returned = lock(&self.shared.returned);
        if !returned.contains(&key) {
            returned.push(key);
        }
    }

    /// Begins a transaction, if none is open.
    fn begin(&mut self) -> Result<(), StoreError> {
        if self.begun.is_some() {
            return Ok(());
        }
        self.check_place()?;
        if self.retry.take().is_some() {
            self.disk = OnDisk::read(&self.owned.database)?;
        }
        let database = &self.owned.database;
        let begin = database.connection.execute_batch("BEGIN IMMEDIATE");
        begin.map_err(|e| database.failed(e))?;
        self.begun = Some(Instant::now());
        if self.epoch != self.wanted_epoch {
            let clear = "DELETE FROM keyframe; DELETE FROM image; DELETE FROM points; DELETE FROM edge; \
                         DELETE FROM matches; DELETE FROM factor; DELETE FROM removed;";
            let clear = database.connection.execute_batch(clear);
            clear.map_err(|e| database.failed(e))?;
            self.disk = OnDisk::default();
        }
        Ok(())
    }

    /// Writes the newest state and commits; returns whether that was possible.
    fn commit(&mut self) -> bool {
        match self.try_commit() {
            Ok(()) => {
                self.uncommitted.clear();
                self.begun = None;
                self.committed = Instant::now();
                self.epoch = self.wanted_epoch;
                if self.shared.failing.swap(false, Ordering::AcqRel) {
                    *lock(&self.shared.failure) = None;
                    tracing::info!(
                        "the map {} is written again",
                        self.owned.database.path.display()
                    );
                }
                true
            }
            Err(error) => {
                self.fail(&error);
                false
            }
        }
    }

    /// An error if the file was moved or deleted: what is written to it then is not in the map that others open.
    fn check_place(&self) -> Result<(), StoreError> {
        match self.owned.stands() {
            true => Ok(()),
            false => Err(StoreError::Gone {
                path: self.owned.database.path.clone(),
            }),
        }
    }

    fn try_commit(&mut self) -> Result<(), StoreError> {
        self.begin()?;
        // The transaction may have begun before the file was moved.
        self.check_place()?;
        if let Some(state) = lock(&self.shared.state).take() {
            self.state = Some(state);
        }
        let database = &self.owned.database;
        // `Clear` may still be on its way to a new state.
        let wanted = self.wanted_epoch;
        if let Some(state) = self.state.as_ref().filter(|s| s.epoch == wanted) {
            self.disk.follow(database, state)?;
        }
        let commit = database.connection.execute_batch("COMMIT");
        commit.map_err(|e| database.failed(e))
    }

    /// Gives up the open transaction; its content returns to the sender.
    fn fail(&mut self, error: &StoreError) {
        // Fails if the database has rolled back by itself.
        let _ = self.owned.database.connection.execute_batch("ROLLBACK");
        self.begun = None;
        for key in std::mem::take(&mut self.uncommitted) {
            self.give_back(key);
        }
        self.retry = Some(Instant::now() + RETRY);
        let text = error.to_string();
        let known = self
            .told
            .as_ref()
            .is_some_and(|(told, at)| *told == text && at.elapsed() < REMIND);
        if !known {
            tracing::error!("{text}; SLAM goes on, and the map is written when that is possible");
            self.told = Some((text.clone(), Instant::now()));
        }
        *lock(&self.shared.failure) = Some(text);
        self.shared.failing.store(true, Ordering::Release);
    }

    /// Leaves one file that is complete without its log.
    fn close(&mut self) -> Result<(), StoreError> {
        set_session(&self.owned, "closed")?;
        // Not possible while another process reads; the log is then part of the map.
        let _ = self
            .owned
            .database
            .connection
            .execute_batch("PRAGMA journal_mode = DELETE");
        Ok(())
    }
}
