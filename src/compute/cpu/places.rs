//! Which keyframes show a place like this one.

use crate::compute::retrieval::{Database, Description, Hit, RetrievalModel, Scratch};
use crate::config::RetrievalConfig;
use std::sync::Arc;

/// The places seen so far, and the keyframe in question.
pub struct Places {
    model: Arc<RetrievalModel>,
    database: Database,
    scratch: Scratch,
    description: Description,
    /// The keyframe that `description` describes.
    described: Option<u32>,
}

impl Places {
    /// No place yet.
    pub fn new(model: Arc<RetrievalModel>) -> Self {
        Self {
            database: Database::new(&model),
            model,
            scratch: Scratch::default(),
            description: Description::default(),
            described: None,
        }
    }

    /// Forgets every place.
    pub fn clear(&mut self) {
        self.database = Database::new(&self.model);
        self.described = None;
    }

    /// Makes keyframe `id` with `features` (`T × C` encoder tokens) the one in question and replaces
    /// `hits` by the keyframes that look like it, the best first. Features that cannot be described are
    /// like no place.
    pub fn look_up(
        &mut self,
        id: u32,
        features: &[f32],
        config: &RetrievalConfig,
        hits: &mut Vec<Hit>,
    ) {
        hits.clear();
        let found = self
            .model
            .describe(features, &mut self.scratch, &mut self.description)
            .and_then(|()| {
                let (k, least) = (config.k, config.min_thresh);
                self.database.query(&self.description, k, least, hits)
            });
        self.described = found.is_ok().then_some(id);
        if let Err(error) = found {
            tracing::warn!("place recognition: {error}");
            hits.clear();
        }
    }

    /// Remembers keyframe `id`, if it is the one in question.
    pub fn remember(&mut self, id: u32) {
        if self.described != Some(id) {
            return;
        }
        if let Err(error) = self.database.insert(id, &self.description) {
            tracing::warn!("keyframe {id} will not be recognised: {error}");
        }
    }
}
