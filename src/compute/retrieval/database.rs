//! Inverted file: for each visual word, the keyframes that contain it (docs/algorithm.md, Place
//! recognition, step 5).

use std::collections::HashMap;

use super::{Description, RetrievalError, RetrievalModel, hamming};

/// A keyframe with similar appearance to the query.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hit {
    /// Id with which the keyframe was inserted.
    pub id: u32,
    /// `Σ [σ ≥ 0]·σ³ / sqrt(|Wq|·|Wd|)`, at most `sqrt(min(|Wq|,|Wd|) / max(|Wq|,|Wd|))`.
    pub score: f32,
}

/// Descriptions of keyframes, by caller-assigned id.
#[derive(Debug, Clone)]
pub struct Database {
    dim: usize,
    postings: Vec<Posting>,
    images: Vec<Image>,
    /// Indices in `images` of removed keyframes.
    free: Vec<u32>,
    slots: HashMap<u32, u32>,
    /// Query scratch: sums of `(C·σ)³` per slot, and distances to the entries of one word.
    sums: Vec<i64>,
    distances: Vec<u32>,
}

/// The entries of one word.
#[derive(Debug, Clone, Default)]
struct Posting {
    /// Indices in `images`.
    slots: Vec<u32>,
    /// The bits of the word in each of these images.
    bits: Vec<u64>,
}

#[derive(Debug, Clone, Default)]
struct Image {
    id: u32,
    /// Its words; empty after removal.
    words: Vec<u32>,
}

impl Database {
    /// An empty database for descriptions made with `model`.
    pub fn new(model: &RetrievalModel) -> Self {
        Self {
            dim: model.dim(),
            postings: vec![Posting::default(); model.words()],
            images: Vec::new(),
            free: Vec::new(),
            slots: HashMap::new(),
            sums: Vec::new(),
            distances: Vec::new(),
        }
    }

    /// Number of keyframes.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether keyframe `id` is in the database.
    pub fn contains(&self, id: u32) -> bool {
        self.slots.contains_key(&id)
    }

    /// Adds a keyframe.
    ///
    /// # Errors
    /// [`RetrievalError::Duplicate`] if the id exists already, [`RetrievalError::OtherModel`]; the
    /// database is then unchanged.
    pub fn insert(&mut self, id: u32, description: &Description) -> Result<(), RetrievalError> {
        self.check_model(description)?;
        if self.contains(id) {
            return Err(RetrievalError::Duplicate { id });
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.images.push(Image::default());
            self.images.len() as u32 - 1
        });
        let stored = &description.stored;
        let image = &mut self.images[slot as usize];
        image.id = id;
        image.words.clone_from(&stored.words);
        let integers = self.dim.div_ceil(64);
        for (&word, bits) in stored.words.iter().zip(stored.bits.chunks_exact(integers)) {
            let posting = &mut self.postings[word as usize];
            posting.slots.push(slot);
            posting.bits.extend_from_slice(bits);
        }
        self.slots.insert(id, slot);
        Ok(())
    }

    /// Removes a keyframe; returns whether it was present.
    pub fn remove(&mut self, id: u32) -> bool {
        let Some(slot) = self.slots.remove(&id) else {
            return false;
        };
        let integers = self.dim.div_ceil(64);
        let words = std::mem::take(&mut self.images[slot as usize].words);
        for &word in &words {
            let posting = &mut self.postings[word as usize];
            if let Some(at) = posting.slots.iter().position(|&s| s == slot) {
                posting.slots.swap_remove(at);
                let last = posting.bits.len() - integers;
                posting.bits.copy_within(last.., at * integers);
                posting.bits.truncate(last);
            }
        }
        self.free.push(slot);
        true
    }

    /// Replaces `hits` by up to `k` keyframes with the highest scores above `min_score`, best
    /// first; ties go to the lower id.
    ///
    /// # Errors
    /// [`RetrievalError::OtherModel`].
    pub fn query(
        &mut self,
        description: &Description,
        k: usize,
        min_score: f32,
        hits: &mut Vec<Hit>,
    ) -> Result<(), RetrievalError> {
        hits.clear();
        self.check_model(description)?;
        // C·σ = C − 2·Hamming is an integer, so sums are exact and independent of the order.
        self.sums.clear();
        self.sums.resize(self.images.len(), 0);
        let query = &description.query;
        let integers = self.dim.div_ceil(64);
        for (&word, bits) in query.words.iter().zip(query.bits.chunks_exact(integers)) {
            let posting = &self.postings[word as usize];
            hamming(bits, &posting.bits, &mut self.distances);
            for (&slot, &distance) in posting.slots.iter().zip(&self.distances) {
                let similarity = self.dim as i64 - 2 * i64::from(distance);
                if similarity > 0 {
                    self.sums[slot as usize] += similarity.pow(3);
                }
            }
        }
        let cube = (self.dim as f64).powi(3);
        for (image, &sum) in self.images.iter().zip(&self.sums) {
            if sum > 0 || (!image.words.is_empty() && min_score < 0.0) {
                let norm = (query.words.len() as f64 * image.words.len() as f64).sqrt();
                let score = if norm > 0.0 {
                    (sum as f64 / cube / norm) as f32
                } else {
                    0.0
                };
                if score > min_score {
                    hits.push(Hit {
                        id: image.id,
                        score,
                    });
                }
            }
        }
        hits.sort_unstable_by(|a, b| b.score.total_cmp(&a.score).then(a.id.cmp(&b.id)));
        hits.truncate(k);
        Ok(())
    }

    fn check_model(&self, description: &Description) -> Result<(), RetrievalError> {
        let words = [&description.query.words, &description.stored.words];
        let beyond = |words: &&Vec<u32>| {
            words
                .last()
                .is_some_and(|&word| word as usize >= self.postings.len())
        };
        if description.dim != self.dim || words.iter().any(beyond) {
            return Err(RetrievalError::OtherModel {
                expected: self.dim,
                found: description.dim,
            });
        }
        Ok(())
    }
}
