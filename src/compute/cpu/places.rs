//! Place recognition on the CPU.

use crate::compute::retrieval::{Database, Description, Hit, RetrievalModel, Scratch};
use std::sync::Arc;

/// Database of places, and the keyframe queried last.
pub struct Places {
    model: Arc<RetrievalModel>,
    database: Database,
    scratch: Scratch,
    description: Description,
    /// The keyframe that `description` describes.
    described: Option<u32>,
}

impl Places {
    /// An empty database.
    pub fn new(model: Arc<RetrievalModel>) -> Self {
        Self {
            database: Database::new(&model),
            model,
            scratch: Scratch::default(),
            description: Description::default(),
            described: None,
        }
    }

    pub fn clear(&mut self) {
        self.database = Database::new(&self.model);
        self.described = None;
    }

    /// Describes keyframe `id` with `features` (`T × C` encoder tokens) and replaces `hits` by up to
    /// `limit` keyframes whose scores are above `min_score`, best first. If the features cannot be
    /// described, there are no hits.
    pub fn query(
        &mut self,
        id: u32,
        features: &[f32],
        limit: usize,
        min_score: f32,
        hits: &mut Vec<Hit>,
    ) {
        hits.clear();
        let found = self
            .model
            .describe(features, &mut self.scratch, &mut self.description)
            .and_then(|()| {
                self.database
                    .query(&self.description, limit, min_score, hits)
            });
        self.described = found.is_ok().then_some(id);
        if let Err(error) = found {
            tracing::warn!("place recognition: {error}");
            hits.clear();
        }
    }

    /// Inserts keyframe `id`, provided it was the one queried last.
    pub fn insert(&mut self, id: u32) {
        if self.described != Some(id) {
            return;
        }
        if let Err(error) = self.database.insert(id, &self.description) {
            tracing::warn!("keyframe {id} will not be recognised: {error}");
        }
    }

    /// Removes keyframe `id`, if it is there.
    pub fn remove(&mut self, id: u32) {
        self.database.remove(id);
    }
}
