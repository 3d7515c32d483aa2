//! The device keeps what its trait promises.

use lily_checkpoint::{Checkpoint, Config};
use lily_gpu::Shapes;
use lily_gpu::device::cuda::{self, CudaDevice};
use lily_gpu::device::{Buffer, Device, DeviceError, Range};
use lily_gpu::plan::Plan;

use crate::support::{device, in_crate};

fn filled(device: &mut CudaDevice, bytes: &[u8]) -> Buffer {
    let buffer = device.allocate(bytes.len() as u64, "test").unwrap();
    device.write(buffer.all(), bytes).unwrap();
    buffer
}

fn read(device: &mut CudaDevice, range: Range) -> Vec<u8> {
    let mut bytes = vec![0; range.bytes as usize];
    device.read(range, &mut bytes).unwrap();
    bytes
}

/// Runs everything given to the device so far.
fn finish(device: &mut CudaDevice) {
    let checkpoint = Checkpoint::embedded().unwrap();
    device.specialise(&Shapes::new(&checkpoint.config).unwrap().constants()).unwrap();
    let nothing = device.prepare(&Plan::default()).unwrap();
    let ticket = device.submit(&nothing).unwrap();
    device.wait(ticket).unwrap();
}

#[test]
fn copies_and_writes_happen_in_the_order_of_the_calls() {
    let Some(mut device) = device() else { return };
    println!("{}: {:?}", device.name(), device.limits());
    // More than fits the way to the device at once.
    let (old, new) = ((0..40 << 20).map(|index| (index >> 10) as u8).collect::<Vec<u8>>(), vec![2u8; 4096]);
    let source = filled(&mut device, &old);
    let [first, second] = [(); 2].map(|()| filled(&mut device, &vec![9; 40 << 20]));
    device.copy(&[(source.all(), first.all())]).unwrap();
    // The copy is not complete, so this must not reach it.
    device.write(source.all().part(0, 4096), &new).unwrap();
    device.copy(&[(source.all(), second.all())]).unwrap();
    device.clear(&[source.all().part(0, 8)]).unwrap();
    finish(&mut device);

    assert!(read(&mut device, first.all()) == old);
    let second = read(&mut device, second.all());
    assert!(second[..4096] == new && second[4096..] == old[4096..]);
    assert_eq!(read(&mut device, source.all().part(0, 16)), [[0u8; 8], [2; 8]].concat());
}

#[test]
fn what_is_not_there_is_refused_with_numbers() {
    let Some(mut device) = device() else { return };
    let bytes = 1 << 50;
    let error = device.allocate(bytes, "keys and values").unwrap_err();
    assert!(matches!(&error, DeviceError::Memory { bytes: told, .. } if *told == bytes), "{error}");
    let text = error.to_string();
    assert!(text.contains(&bytes.to_string()) && text.contains("keys and values"), "{text}");

    let buffer = device.allocate(64, "test").unwrap();
    assert!(device.read(Range { offset: 60, ..buffer.all() }, &mut [0; 8]).is_err());
    device.release(buffer);
    assert!(device.write(buffer.all(), &[0; 4]).is_err());
    assert!(device.copy(&[(buffer.all(), buffer.all())]).is_err());
    assert!(device.clear(&[buffer.all()]).is_err());
}

/// For Hopper with its own kernels and for the oldest GPU that has what the others need, whatever is here, as far as NVRTC is.
#[test]
fn every_kernel_compiles() {
    let large = std::fs::read(in_crate("../../models/qwen3.6-35b-a3b/config.json")).unwrap();
    let configs = [Checkpoint::embedded().unwrap().config.clone(), Config::parse(&large).unwrap()];
    for (config, architecture) in configs.iter().flat_map(|config| ["sm_90a", "sm_80"].map(|name| (config, name))) {
        match cuda::compile(architecture, &Shapes::new(config).unwrap().constants()) {
            Err(error) if error.to_string().contains("libnvrtc.so is not found") => println!("SKIPPED: {error}"),
            code => assert!(code.unwrap_or_else(|error| panic!("{error}")).starts_with(b"\x7fELF")),
        }
    }
}
