//! placeholder until merge
use std::sync::Arc;
pub struct RetrievalModel;
#[derive(Default)]
pub struct BuildOptions {
    pub clusters: usize,
}
impl RetrievalModel {
    pub fn build(_f: &[Vec<f32>], _c: usize, _o: &BuildOptions) -> Result<Self, String> {
        Ok(Self)
    }
}
pub struct Database {
    items: Vec<(u32, Vec<f32>)>,
}
impl Database {
    pub fn new(_m: Arc<RetrievalModel>) -> Self {
        Self { items: vec![] }
    }
    pub fn insert(&mut self, id: u32, f: &[f32]) {
        self.items.push((id, f.to_vec()));
    }
    pub fn query(&mut self, f: &[f32], k: usize, _min: f32) -> Vec<u32> {
        let mut s: Vec<(f32, u32)> = self
            .items
            .iter()
            .map(|(id, g)| {
                let c = 32;
                let mut best = 0.0f32;
                for a in f.chunks(c) {
                    let hit = g.chunks(c).any(|b| b[..c - 1] == a[..c - 1]);
                    best += f32::from(hit);
                }
                (-best, *id)
            })
            .filter(|(s, _)| *s < -8.0)
            .collect();
        s.sort_by(|a, b| a.0.total_cmp(&b.0));
        s.into_iter().take(k).map(|x| x.1).collect()
    }
}
