//! Which keyframes show a place like this one.

use super::retrieval::{Database, Description, Hit, RetrievalModel, Scratch};
use crate::config::RetrievalConfig;
use std::sync::Arc;

/// The places seen so far, and the frame in question.
pub struct Places {
    model: Arc<RetrievalModel>,
    database: Database,
    scratch: Scratch,
    description: Description,
    /// Whether `description` holds the frame in question.
    described: bool,
    hits: Vec<Hit>,
}

impl Places {
    /// No place yet.
    pub fn new(model: Arc<RetrievalModel>) -> Self {
        Self {
            database: Database::new(&model),
            model,
            scratch: Scratch::default(),
            description: Description::default(),
            described: false,
            hits: Vec::new(),
        }
    }

    /// Forgets every place.
    pub fn clear(&mut self) {
        self.database = Database::new(&self.model);
        self.described = false;
    }

    /// Makes `features` (`T × C` encoder tokens) the frame in question and gives the keyframes that
    /// look like it, the best first. Features that cannot be described are like no place.
    pub fn look_up(&mut self, features: &[f32], config: &RetrievalConfig) -> &[Hit] {
        self.hits.clear();
        let found = self
            .model
            .describe(features, &mut self.scratch, &mut self.description)
            .and_then(|()| {
                let hits = &mut self.hits;
                let (k, least) = (config.k, config.min_thresh);
                self.database.query(&self.description, k, least, hits)
            });
        self.described = found.is_ok();
        if let Err(error) = found {
            tracing::warn!("place recognition: {error}");
            self.hits.clear();
        }
        &self.hits
    }

    /// Remembers the frame in question as keyframe `id`.
    pub fn remember(&mut self, id: u32) {
        if !self.described {
            return;
        }
        if let Err(error) = self.database.insert(id, &self.description) {
            tracing::warn!("keyframe {id} will not be recognised: {error}");
        }
    }
}
