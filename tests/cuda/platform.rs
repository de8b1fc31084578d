//! Memory, streams, graphs and errors.

use crate::{assert_same, cuda};
use half::f16;
use mast3r_slam::compute::cuda::convert::Convert;
use mast3r_slam::compute::cuda::{
    Context, CudaError, DeviceArena, Grid, PinnedArena, Pool, Priority, allocations,
};
use mast3r_slam::compute::plan::{Group, MemoryPlan, Spec};

#[test]
fn a_gpu_that_is_not_there_has_a_name() {
    // 1000 GPUs are in no machine; without any, the error says that.
    match Context::open(1000).map(|_| ()) {
        Err(CudaError::NoSuchDevice { asked: 1000, count }) => assert!(count > 0),
        Err(CudaError::NoDriver | CudaError::NoDevice | CudaError::OldDriver { .. }) => {
            assert!(cuda().is_none());
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn memory_is_copied_filled_and_bounded() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::Low).unwrap();
    let mut arena = DeviceArena::new(context, "test", 4096).unwrap();
    let a = arena.carve::<u32>("a", 300).unwrap();
    let b = arena.carve::<u32>("b", 300).unwrap();
    let full = arena.carve::<u32>("c", 1000).map(|_| ()).unwrap_err();
    assert!(
        matches!(full, CudaError::ArenaFull { name: "c", .. }),
        "{full}"
    );
    let values: Vec<u32> = (0..300).map(|i| i * 0x0101_0101).collect();
    stream.write(&values, a.all()).unwrap();
    stream.fill(b.all(), 0xab).unwrap();
    stream
        .copy(a.slice(10..20).unwrap(), b.slice(290..300).unwrap())
        .unwrap();
    let mut expected = vec![0xabab_abab; 300];
    expected[290..].copy_from_slice(&values[10..20]);
    assert_same("copied", &stream.read_vec(b.all()).unwrap(), &expected);

    for refused in [
        a.slice(299..301).map(|_| ()),
        stream.write(&values[1..], a.all()),
        stream.copy(a.slice(0..2).unwrap(), b.slice(0..3).unwrap()),
    ] {
        assert!(
            matches!(refused, Err(CudaError::Length { .. })),
            "{refused:?}"
        );
    }
    let too_much = DeviceArena::new(context, "test", 1 << 50)
        .map(|_| ())
        .unwrap_err();
    match too_much {
        CudaError::OutOfMemory { free, total, .. } => {
            assert!(free <= total && total == context.info().memory_bytes);
        }
        other => panic!("{other}"),
    }
}

#[test]
fn pinned_memory_goes_there_and_back() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::High).unwrap();
    let before = allocations();
    let mut pinned = PinnedArena::new(context, 1 << 20).unwrap();
    let mut arena = DeviceArena::new(context, "test", 1 << 20).unwrap();
    let mut src = pinned.carve::<f32>("src", 1000).unwrap();
    let mut dst = pinned.carve::<f32>("dst", 1000).unwrap();
    let there = arena.carve::<f32>("there", 1000).unwrap();
    assert!(src.iter().chain(dst.iter()).all(|&v| v == 0.0));
    let values: Vec<f32> = (0..1000).map(|i| i as f32 * 0.5).collect();
    src.copy_from_slice(&values);
    // SAFETY: nobody touches either before the stream is waited for.
    unsafe {
        stream.upload(&src, there.all()).unwrap();
        stream.download(there.all(), &mut dst).unwrap();
    }
    stream.synchronize().unwrap();
    assert_same("pinned", &dst, &values);
    let after = allocations();
    let new = (after.device - before.device, after.pinned - before.pinned);
    assert_eq!(new, (1, 1));
}

#[test]
fn streams_wait_for_events_and_time_passes_between_them() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let (high, low) = (
        context.stream(Priority::High).unwrap(),
        context.stream(Priority::Low).unwrap(),
    );
    let (start, end) = (context.event(true).unwrap(), context.event(true).unwrap());
    let n = 64 << 20;
    let mut arena = DeviceArena::new(context, "test", 2 * n as u64 + 512).unwrap();
    let a = arena.carve::<u8>("a", n).unwrap();
    let b = arena.carve::<u8>("b", n).unwrap();
    low.record(&start).unwrap();
    for byte in 0..=9 {
        low.fill(a.all(), byte).unwrap();
    }
    low.record(&end).unwrap();
    high.wait(&end).unwrap();
    high.copy(a.all(), b.all()).unwrap();
    let found = high.read_vec(b.all()).unwrap();
    assert!(end.is_done().unwrap());
    assert!(found.iter().all(|&v| v == 9));
    let time = start.milliseconds_until(&end).unwrap();
    // 671 MB: no memory writes 100 TB/s.
    assert!(time > 0.006, "{time} ms");
}

#[test]
fn a_graph_repeats_what_was_captured() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::High).unwrap();
    let convert = Convert::new(context).unwrap();
    let mut pinned = PinnedArena::new(context, 1 << 20).unwrap();
    let mut arena = DeviceArena::new(context, "test", 1 << 20).unwrap();
    let n = 1001;
    let mut src = pinned.carve::<f32>("src", n).unwrap();
    let mut dst = pinned.carve::<f16>("dst", n).unwrap();
    let wide = arena.carve::<f32>("wide", n).unwrap();
    let narrow = arena.carve::<f16>("narrow", n).unwrap();
    let graph = stream
        .capture(|| -> Result<(), CudaError> {
            // SAFETY: nobody touches the pinned buffers between a launch and its end.
            unsafe { stream.upload(&src, wide.all()) }?;
            convert.narrow(&stream, wide.all(), narrow.all())?;
            // SAFETY: as above.
            unsafe { stream.download(narrow.all(), &mut dst) }
        })
        .unwrap();
    assert_eq!(graph.nodes(), 3);
    graph.upload(&stream).unwrap();
    for round in 0..3 {
        for (i, v) in src.iter_mut().enumerate() {
            *v = (i + round * n) as f32;
        }
        // SAFETY: all buffers are alive, and the stream is waited for before they are touched.
        unsafe { graph.launch(&stream) }.unwrap();
        stream.synchronize().unwrap();
        let expected: Vec<f16> = src.iter().map(|&v| f16::from_f32(v)).collect();
        assert_same("replayed", &dst, &expected);
    }

    // What fails while it is captured fails, and the stream is as before.
    let failed = stream
        .capture(|| Err::<(), _>(CudaError::NoDevice))
        .map(|_| ())
        .unwrap_err();
    assert_eq!(failed, CudaError::NoDevice);
    let synchronised = stream
        .capture(|| -> Result<(), CudaError> { stream.synchronize() })
        .map(|_| ())
        .unwrap_err();
    assert!(
        matches!(synchronised, CudaError::Failed { .. }) && !synchronised.is_device_lost(),
        "{synchronised}"
    );
    stream.fill(wide.all(), 0).unwrap();
    stream.synchronize().unwrap();
}

#[test]
fn a_launch_that_cannot_be_is_refused_by_name() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::High).unwrap();
    let unknown = context.kernel("ms_no_such_kernel").unwrap_err();
    assert!(matches!(unknown, CudaError::NoKernel { .. }), "{unknown}");

    let kernel = context.kernel("ms_convert_f32_to_f16").unwrap();
    assert!(kernel.registers().unwrap() > 0);
    assert!(kernel.resident_blocks(256, 0).unwrap() >= context.info().multiprocessors);
    let mut arena = DeviceArena::new(context, "test", 1 << 12).unwrap();
    let wide = arena.carve::<f32>("wide", 8).unwrap();
    let narrow = arena.carve::<f16>("narrow", 8).unwrap();
    let (src, dst) = (wide.pointer(), narrow.pointer());
    // SAFETY: the arguments are refused, or the grid is; nothing runs.
    let (arguments, grid, cooperative) = unsafe {
        (
            kernel.launch(&stream, Grid::over(8, 256), (src, dst, 8_u32)),
            kernel.launch(&stream, Grid::over(8, 2048), (src, dst, 8_u64)),
            kernel.launch_cooperative(&stream, Grid::blocks(1 << 20, 256), (src, dst, 8_u64)),
        )
    };
    let arguments = arguments.unwrap_err();
    assert!(
        matches!(&arguments, CudaError::Arguments { expected, .. } if *expected == [8, 8, 8]),
        "{arguments}"
    );
    for refused in [grid, cooperative] {
        let refused = refused.unwrap_err();
        assert!(
            matches!(refused, CudaError::Launch { .. }) && !refused.is_device_lost(),
            "{refused}"
        );
    }
    // The context is as good as before.
    stream.fill(wide.all(), 0).unwrap();
    assert_same("after", &stream.read_vec(wide.all()).unwrap(), &[0.0; 8]);
}

#[test]
fn a_pool_is_two_allocations_whatever_the_plan() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::Low).unwrap();
    let mut plan = MemoryPlan::new();
    let mut part = plan.part(Group::Tracking, "test");
    let (a, b) = (
        part.device::<u32>("a", &[100]),
        part.device::<u32>("b", &[7, 3]),
    );
    let host = part.pinned::<u32>("host", &[21]);
    let device_list = part.device_arena(&[Spec::of::<u64>("c", &[9]), Spec::of::<u8>("d", &[5])]);
    let host_list = part.pinned_arena(&[Spec::of::<u8>("e", &[3])]);
    let mut stage = part.stage("first");
    let (first, one) = (stage.stage(), stage.scratch::<u32>("one", &[1000]));
    let mut stage = part.stage("second");
    let (second, two) = (stage.stage(), stage.scratch::<u8>("two", &[4000]));
    let alien = MemoryPlan::new()
        .part(Group::Mapping, "x")
        .pinned::<u32>("y", &[1]);

    let before = allocations();
    let mut pool = Pool::new(context, &plan).unwrap();
    let (a, b, mut host) = (
        pool.device(a).unwrap(),
        pool.device(b).unwrap(),
        pool.pinned(host).unwrap(),
    );
    assert!(matches!(
        pool.pinned(alien).map(|_| ()),
        Err(CudaError::Plan)
    ));
    let mut arena = pool.device_arena(device_list).unwrap();
    let c = arena.carve::<u64>("c", 9).unwrap();
    assert!(matches!(
        arena.carve::<u8>("x", 5).map(|_| ()),
        Err(CudaError::Unplanned {
            planned: Some(("d", 5)),
            ..
        })
    ));
    let e = pool.pinned_arena(host_list).unwrap().carve::<u8>("e", 3);
    assert_same("e", &e.unwrap(), &[0; 3]);
    stream.fill(c.all(), 7).unwrap();
    let mut scratch = pool.scratch(Group::Tracking).unwrap();
    assert!(pool.scratch(Group::Tracking).is_none() && pool.scratch(Group::Mapping).is_none());

    stream.fill(a.all(), 1).unwrap();
    stream.fill(b.all(), 2).unwrap();
    {
        let lease = scratch.lease(first).unwrap();
        assert!(matches!(
            lease.slice(&two).map(|_| ()),
            Err(CudaError::Stage)
        ));
        stream.fill(lease.slice(&one).unwrap(), 3).unwrap();
    }
    let lease = scratch.lease(second).unwrap();
    // The same memory, as the stage before left it; and nothing else was touched.
    let left = stream.read_vec(lease.slice(&two).unwrap()).unwrap();
    assert_same("scratch", &left, &[3; 4000]);
    assert_same(
        "a",
        &stream.read_vec(a.all()).unwrap(),
        &[0x0101_0101_u32; 100],
    );
    let seven = u64::from_ne_bytes([7; 8]);
    assert_same("c", &stream.read_vec(c.all()).unwrap(), &[seven; 9]);
    stream.read(b.all(), &mut host).unwrap();
    assert_same("b", &host, &[0x0202_0202_u32; 21]);
    let after = allocations();
    let new = (after.device - before.device, after.pinned - before.pinned);
    assert_eq!(new, (1, 1));
}
