//! Memory, streams, graphs and errors.

use crate::{assert_same, buffer, carve, cuda};
use half::f16;
use mast3r_slam::compute::cuda::KERNELS;
use mast3r_slam::compute::cuda::convert::Convert;
use mast3r_slam::gpu::plan::Group;
use mast3r_slam::gpu::{Carving, Context, CudaError, Grid, PinnedBuffer, Priority, allocations};

#[test]
fn a_gpu_that_is_not_there_has_a_name() {
    // 1000 GPUs are in no machine; without any, the error says that.
    match Context::open(1000, &KERNELS).map(|_| ()) {
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
    let a = buffer::<u32>(context, 300);
    let b = buffer::<u32>(context, 300);
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
    let mut carving = Carving::separate(context);
    let mut part = carving.part(Group::Tracking, "test");
    let too_much = part.device::<u8>("too much", &[1 << 50]).map(|_| ());
    let too_much = too_much.unwrap_err();
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
    let mut src: PinnedBuffer<f32> = carve(context, |c| c.pinned("src", &[1000]));
    let mut dst: PinnedBuffer<f32> = carve(context, |c| c.pinned("dst", &[1000]));
    let there = buffer::<f32>(context, 1000);
    assert!(src.iter().chain(dst.iter()).all(|&v| v == 0.0));
    let values: Vec<f32> = (0..1000).map(|i| i as f32 * 0.5).collect();
    src.copy_from_slice(&values);
    // SAFETY: neither is touched before the stream is waited for.
    unsafe {
        stream.upload(&src, there.all()).unwrap();
        stream.download(there.all(), &mut dst).unwrap();
    }
    stream.synchronize().unwrap();
    assert_same("pinned", &dst, &values);
    let after = allocations();
    let new = (after.device - before.device, after.pinned - before.pinned);
    assert_eq!(new, (1, 2));
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
    let a = buffer::<u8>(context, n);
    let b = buffer::<u8>(context, n);
    low.record(&start).unwrap();
    for byte in 0..=9 {
        low.fill(a.all(), byte).unwrap();
    }
    low.record(&end).unwrap();
    high.wait(&end).unwrap();
    high.copy(a.all(), b.all()).unwrap();
    let found = high.read_vec(b.all()).unwrap();
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
    let n = 1001;
    let mut src: PinnedBuffer<f32> = carve(context, |c| c.pinned("src", &[n]));
    let mut dst: PinnedBuffer<f16> = carve(context, |c| c.pinned("dst", &[n]));
    let wide = buffer::<f32>(context, n);
    let narrow = buffer::<f16>(context, n);
    let graph = stream
        .capture(|| -> Result<(), CudaError> {
            // SAFETY: the pinned buffers are not touched between a launch and its end.
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

    // A failure during capture is reported, and the stream is usable again.
    let failed = stream
        .capture(|| Err::<(), _>(CudaError::NoDevice))
        .map(|_| ())
        .unwrap_err();
    assert_eq!(failed, CudaError::NoDevice);
    // So it is when the closure panics.
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = stream.capture(|| -> Result<(), CudaError> { panic!("within a capture") });
    }));
    assert!(panicked.is_err() && !stream.is_capturing().unwrap());
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
    let wide = buffer::<f32>(context, 8);
    let narrow = buffer::<f16>(context, 8);
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
fn what_was_planned_is_carved_from_two_allocations_and_nothing_else() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::Low).unwrap();
    let carve = |carving: &mut Carving<'_>| {
        let mut part = carving.part(Group::Tracking, "test");
        let a = part.device::<u32>("a", &[100])?;
        let host = part.pinned::<u32>("host", &[21])?;
        let b = part.part("inner").device::<u32>("b", &[7, 3])?;
        let c = part.device::<u64>("c", &[9])?;
        Ok::<_, CudaError>((a, b, c, host, part.pinned::<u8>("e", &[3])?))
    };
    let mut paper = Carving::on_paper();
    carve(&mut paper).unwrap();
    let plan = paper.into_plan();

    let before = allocations();
    let mut carving = Carving::planned(context, &plan).unwrap();
    let (a, b, c, mut host, e) = carve(&mut carving).unwrap();
    let mut part = carving.part(Group::Tracking, "test");
    let more = part.device::<u8>("x", &[5]).map(|_| ()).unwrap_err();
    assert!(
        matches!(more, CudaError::Unplanned { planned: None, .. }),
        "{more}"
    );
    assert_same("e", &e, &[0; 3]);
    stream.fill(a.all(), 1).unwrap();
    stream.fill(b.all(), 2).unwrap();
    stream.fill(c.all(), 7).unwrap();
    let ones = [0x0101_0101_u32; 100];
    assert_same("a", &stream.read_vec(a.all()).unwrap(), &ones);
    let seven = u64::from_ne_bytes([7; 8]);
    assert_same("c", &stream.read_vec(c.all()).unwrap(), &[seven; 9]);
    stream.read(b.all(), &mut host).unwrap();
    assert_same("b", &host, &[0x0202_0202_u32; 21]);
    let after = allocations();
    let new = (after.device - before.device, after.pinned - before.pinned);
    assert_eq!(new, (1, 1));

    // Another buffer than the planned one is refused, and so is a plan that is not used up.
    let mut carving = Carving::planned(context, &plan).unwrap();
    let mut part = carving.part(Group::Tracking, "test");
    let other = part.device::<u32>("a", &[101]).map(|_| ()).unwrap_err();
    let text = other.to_string();
    assert!(
        text.contains("404") && text.contains("test.a of 400"),
        "{text}"
    );
    let mut carving = Carving::planned(context, &plan).unwrap();
    let mut part = carving.part(Group::Tracking, "test");
    part.device::<u32>("a", &[100]).unwrap();
    let unfinished = carving.finish().unwrap_err().to_string();
    assert!(unfinished.contains("test.host of 84 bytes"), "{unfinished}");
}
