//! The Gaussian map on the CPU. Its results are the reference for every other device.

use super::SplatError;
use super::blend::{Frame, Image};
use super::block::{BlockContent, RowBlock};
use super::camera::{Camera, Pointmap, Rendering, View};
use super::device::{
    AdamStep, AnchorMove, Counters, Counts, Loss, LossWeights, RefineRules, RelocateRules,
    Relocated, RowGradients, SeedRules, Seeded, SplatDevice, SplatMemory,
};
use super::layout::{Field, Layout};
use super::projection::{Projected, RowGradient, project, project_backward};
use super::store::Store;
use super::{adam, anchors, loss, refine, relocate, seed};
use rayon::prelude::*;

/// A Gaussian map in host memory.
pub struct CpuSplat {
    store: Store,
    epoch: u64,
    image: Image,
    by_image: Image,
    gradients: RowGradients,
    has_gradients: bool,
}

impl CpuSplat {
    /// A map without rows.
    ///
    /// # Errors
    /// Those of [`Layout::new`].
    pub fn new(capacity: u64, degree: u8) -> Result<Self, SplatError> {
        Ok(Self {
            store: Store::new(Layout::new(capacity, degree)?)?,
            epoch: 0,
            image: Image::default(),
            by_image: Image::default(),
            gradients: RowGradients::default(),
            has_gradients: false,
        })
    }

    /// The rows.
    pub fn store(&self) -> &Store {
        &self.store
    }

    fn frame(&self, camera: &Camera) -> Frame {
        let visible: Vec<(u32, Projected)> = (0..self.store.rows)
            .into_par_iter()
            .filter(|row| self.store.is_valid(*row))
            .filter_map(|row| Some((row as u32, project(&self.store.row(row), camera)?)))
            .collect();
        let (rows, projected) = visible.into_iter().unzip();
        Frame::new(camera, rows, projected)
    }

    /// After a change of rows other than by [`SplatDevice::step`].
    fn changed(&mut self) {
        self.epoch += 1;
        self.has_gradients = false;
    }

    fn add_statistics(&mut self, row: usize, gradient: f32) {
        let store = &mut self.store;
        if gradient.is_finite() {
            store.gradient_sum[row] += gradient;
        }
        store.seen[row] = store.seen[row].saturating_add(1);
        store.observed[row] = store.observed[row].saturating_add(1);
    }
}

impl SplatDevice for CpuSplat {
    fn name(&self) -> &str {
        "the CPU"
    }

    fn layout(&self) -> &Layout {
        self.store.layout()
    }

    fn counts(&self) -> Counts {
        Counts {
            rows: self.store.rows as u64,
            capacity: self.store.capacity() as u64,
            epoch: self.epoch,
        }
    }

    fn memory(&self) -> SplatMemory {
        let image = |image: &Image| {
            8 * (image.color.len() + image.depth.len() + image.silhouette.len()) as u64
        };
        let gradients = 4 * (self.gradients.rows.len() + self.gradients.values.len()) as u64;
        SplatMemory {
            pool: self.store.bytes(),
            view: image(&self.image) + image(&self.by_image) + gradients,
            pinned: 0,
            refine: 0,
        }
    }

    fn append(&mut self, src: &RowBlock) -> Result<u64, SplatError> {
        src.check(self.layout().degree())?;
        let start = self.store.rows;
        if src.rows() > self.store.capacity() - start {
            return Err(SplatError::Full {
                rows: src.rows() as u64,
                held: start as u64,
                capacity: self.store.capacity() as u64,
            });
        }
        let (store, degree) = (&mut self.store, src.degree());
        let rows = start..start + src.rows();
        for field in Field::ALL {
            let width = field.width(degree);
            let to = rows.start * width..rows.end * width;
            store.parameters.get_mut(field)[to.clone()].copy_from_slice(src.parameters.get(field));
            if src.content() == BlockContent::State {
                store.first.get_mut(field)[to.clone()].copy_from_slice(src.first.get(field));
                store.second.get_mut(field)[to].copy_from_slice(src.second.get(field));
            }
        }
        store.anchor[rows.clone()].copy_from_slice(&src.anchor);
        match src.content() {
            BlockContent::Parameters => store.clear_state(rows),
            BlockContent::State => {
                store.gradient_sum[rows.clone()].copy_from_slice(&src.gradient_sum);
                store.seen[rows.clone()].copy_from_slice(&src.seen);
                store.observed[rows].copy_from_slice(&src.observed);
            }
        }
        store.rows += src.rows();
        self.changed();
        Ok(start as u64)
    }

    fn read(&mut self, start: u64, dst: &mut RowBlock) -> Result<(), SplatError> {
        dst.check(self.layout().degree())?;
        let held = self.store.rows as u64;
        let end = start.saturating_add(dst.rows() as u64);
        if end > held {
            return Err(SplatError::Rows { start, end, held });
        }
        let (store, degree) = (&self.store, dst.degree());
        let rows = start as usize..end as usize;
        let state = dst.content() == BlockContent::State;
        for field in Field::ALL {
            let width = field.width(degree);
            let from = rows.start * width..rows.end * width;
            let parameters = &store.parameters.get(field)[from.clone()];
            dst.parameters.get_mut(field).copy_from_slice(parameters);
            if state {
                dst.first
                    .get_mut(field)
                    .copy_from_slice(&store.first.get(field)[from.clone()]);
                dst.second
                    .get_mut(field)
                    .copy_from_slice(&store.second.get(field)[from]);
            }
        }
        dst.anchor.copy_from_slice(&store.anchor[rows.clone()]);
        if state {
            dst.gradient_sum
                .copy_from_slice(&store.gradient_sum[rows.clone()]);
            dst.seen.copy_from_slice(&store.seen[rows.clone()]);
            dst.observed.copy_from_slice(&store.observed[rows]);
        }
        Ok(())
    }

    fn clear(&mut self) -> Result<(), SplatError> {
        self.store.rows = 0;
        self.changed();
        Ok(())
    }

    fn render(&mut self, camera: &Camera, dst: &mut Rendering) -> Result<(), SplatError> {
        camera.check()?;
        self.frame(camera).forward(&mut self.image);
        dst.reshape(camera.width, camera.height);
        let copy = |to: &mut [f32], from: &[f64]| {
            to.iter_mut()
                .zip(from)
                .for_each(|(to, from)| *to = *from as f32);
        };
        copy(&mut dst.color, &self.image.color);
        copy(&mut dst.depth, &self.image.depth);
        copy(&mut dst.silhouette, &self.image.silhouette);
        Ok(())
    }

    fn gradients(&mut self, view: &View<'_>, weights: &LossWeights) -> Result<Loss, SplatError> {
        view.check()?;
        let camera = &view.camera;
        let frame = self.frame(camera);
        frame.forward(&mut self.image);
        let mut loss = loss::loss(&self.image, view, weights, &mut self.by_image);
        let by_projected = frame.backward(&self.by_image);
        let rows: Vec<RowGradient> = (frame.rows.par_iter().zip(&by_projected))
            .map(|(row, by)| project_backward(&self.store.row(*row as usize), camera, by))
            .collect();
        let rest = Field::Rest.width(self.layout().degree()) / 3;
        self.gradients.rows.clone_from(&frame.rows);
        self.gradients.values.clear();
        for g in &rows {
            let values = &mut self.gradients.values;
            let mut push = |from: &[f64]| values.extend(from.iter().map(|v| *v as f32));
            push(g.mean.as_slice());
            push(g.scale.as_slice());
            push(g.rotation.as_slice());
            push(&[g.logit]);
            g.sh[..=rest].iter().for_each(|sh| push(sh.as_slice()));
            for (sum, part) in loss.pose.iter_mut().zip(g.pose) {
                *sum += part;
            }
        }
        if weights.statistics {
            let half = [camera.width as f64 / 2.0, camera.height as f64 / 2.0];
            for (row, by) in frame.rows.iter().zip(&by_projected) {
                let gradient = (by.pixel.x * half[0]).hypot(by.pixel.y * half[1]);
                self.add_statistics(*row as usize, gradient as f32);
            }
        }
        loss.visible = frame.rows.len() as u64;
        self.has_gradients = true;
        Ok(loss)
    }

    fn read_gradients(&mut self, dst: &mut RowGradients) -> Result<(), SplatError> {
        if !self.has_gradients {
            return Err(SplatError::NoGradients);
        }
        dst.rows.clone_from(&self.gradients.rows);
        dst.values.clone_from(&self.gradients.values);
        Ok(())
    }

    fn step(&mut self, step: &AdamStep) -> Result<(), SplatError> {
        if !self.has_gradients {
            return Err(SplatError::NoGradients);
        }
        adam::step(&mut self.store, &self.gradients, step);
        self.has_gradients = false;
        Ok(())
    }

    fn refine(&mut self, rules: &RefineRules) -> Result<Counters, SplatError> {
        self.changed();
        refine::refine(&mut self.store, rules, self.epoch)
    }

    fn relocate(&mut self, rules: &RelocateRules) -> Result<Relocated, SplatError> {
        self.changed();
        Ok(relocate::relocate(&mut self.store, rules))
    }

    fn reset_opacity(&mut self, logit: f32) -> Result<(), SplatError> {
        self.has_gradients = false;
        let rows = self.store.rows;
        for value in &mut self.store.parameters.get_mut(Field::Opacity)[..rows] {
            *value = value.min(logit);
        }
        self.store.first.get_mut(Field::Opacity)[..rows].fill(0.0);
        self.store.second.get_mut(Field::Opacity)[..rows].fill(0.0);
        Ok(())
    }

    fn seed(&mut self, pointmap: &Pointmap<'_>, rules: &SeedRules) -> Result<Seeded, SplatError> {
        pointmap.check()?;
        self.frame(&pointmap.camera).forward(&mut self.image);
        let room = (self.store.capacity() - self.store.rows) as u64;
        let room = (room, self.layout().degree());
        let (block, seeded) = seed::rows(pointmap, &self.image, rules, room);
        self.append(&block)?;
        Ok(seeded)
    }

    fn move_anchors(&mut self, moves: &[AnchorMove]) -> Result<(), SplatError> {
        self.has_gradients = false;
        anchors::move_anchors(&mut self.store, moves);
        Ok(())
    }

    fn verify(&mut self) -> Result<(), SplatError> {
        self.store.verify()
    }
}
