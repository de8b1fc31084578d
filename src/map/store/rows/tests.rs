use super::*;
use crate::compute::global::Matrix7;
use nalgebra::{UnitQuaternion, Vector3};

fn place(x: f64) -> Sim3 {
    Sim3 {
        translation: Vector3::new(x, -0.1, 2.0),
        rotation: UnitQuaternion::from_euler_angles(0.1, x, -0.3),
        scale: 1.1,
    }
}

#[test]
fn rows_come_back_to_the_bit() {
    let mut row = Vec::new();
    let keyframe = KeyframeRow {
        id: 7,
        submap: 2,
        frame_index: 1 << 40,
        stamp: Stamp { nanos: -5 },
        world_from_camera: place(0.3),
        chain: Some(SavedChain {
            keyframe: 5,
            keyframe_from_camera: place(0.7),
        }),
    };
    keyframe.write(&mut row);
    assert_eq!(KeyframeRow::read(7, &row).unwrap(), keyframe);
    // Under another key it is not this row.
    assert!(KeyframeRow::read(8, &row).is_err());
    let edge = EdgeRow {
        number: 9,
        i: 3,
        j: 7,
        kind: EdgeKind::Loop,
        match_fraction: 0.25,
    };
    edge.write(&mut row);
    assert_eq!(EdgeRow::read(9, &row).unwrap(), edge);
    let mut information = Matrix7::identity() * 3.0;
    (information[(1, 4)], information[(4, 1)]) = (0.5, 0.5);
    let factor = PoseFactor {
        i: 70_000,
        j: 3,
        i_from_j: place(1.0),
        information,
    };
    write_factor(&factor, &mut row);
    assert_eq!(read_factor(factor_key(&factor), &row).unwrap(), factor);
    let removed = RemovedRow {
        id: 4,
        keyframe: 3,
        keyframe_from_removed: place(-2.0),
    };
    removed.write(&mut row);
    assert_eq!(RemovedRow::read(4, &row).unwrap(), removed);
}

#[test]
fn every_bit_of_a_row_counts() {
    let mut row = Vec::new();
    let edge = EdgeRow {
        number: 9,
        i: 3,
        j: 7,
        kind: EdgeKind::Loop,
        match_fraction: 0.25,
    };
    edge.write(&mut row);
    for bit in 0..8 * row.len() {
        let mut changed = row.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(EdgeRow::read(9, &changed).is_err(), "bit {bit}");
    }
    for length in 0..row.len() {
        assert!(EdgeRow::read(9, &row[..length]).is_err(), "{length} bytes");
    }
    // A checksum that fits does not make nonsense of it.
    let mut looped = Vec::new();
    EdgeRow { j: 3, ..edge }.write(&mut looped);
    assert!(EdgeRow::read(9, &looped).is_err());
}
