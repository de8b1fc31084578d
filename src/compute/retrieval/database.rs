//! The inverted file: for each visual word the keyframes that have it (spec 7.3).

use std::collections::HashMap;

use super::{Description, RetrievalError, RetrievalModel, hamming};

/// A keyframe that looks like the query.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hit {
    /// The id that it was inserted with.
    pub id: u32,
    /// `Σ [σ ≥ 0]·σ³ / sqrt(|Wq|·|Wd|)`, at most `sqrt(min(|Wq|,|Wd|) / max(|Wq|,|Wd|))`.
    pub score: f32,
}

/// Descriptions of keyframes under the ids that the caller gives them.
#[derive(Debug, Clone)]
pub struct Database {
    dim: usize,
    postings: Vec<Posting>,
    images: Vec<Image>,
    /// Places in `images` whose keyframe was removed.
    free: Vec<u32>,
    slots: HashMap<u32, u32>,
    /// Scratch of a query: sums of `(C·σ)³` per slot, and distances to one word's entries.
    sums: Vec<i64>,
    distances: Vec<u32>,
}

/// One word's entries.
#[derive(Debug, Clone, Default)]
struct Posting {
    /// Places in `images`.
    slots: Vec<u32>,
    /// As many times the bits of a word.
    bits: Vec<u64>,
}

#[derive(Debug, Clone, Default)]
struct Image {
    id: u32,
    /// Its words; none once it is removed.
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

    /// Keyframes in it.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether a keyframe is in it.
    pub fn contains(&self, id: u32) -> bool {
        self.slots.contains_key(&id)
    }

    /// Adds a keyframe under the caller's id.
    ///
    /// # Errors
    /// [`RetrievalError::Duplicate`] if the id is there already, [`RetrievalError::OtherModel`];
    /// the database is then unchanged.
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

    /// Takes a keyframe out; whether it was there.
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

    /// The at most `k` keyframes with the highest scores above `min_score`, best first; of equal
    /// scores the lower id. `hits` is replaced.
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
        // C·σ = C − 2·Hamming is an integer, so sums are exact and independent of any order.
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
