use super::*;

#[test]
fn two_mappings_are_one_memory() {
    let (fd, first) = Shared::create(3, 77).unwrap();
    let second = Shared::open(&fd, 3).unwrap();
    assert_eq!(second.id(), 77);
    let offset = first.layout().phase(Plane::Stream, 2);
    first.word(offset).store(9, Ordering::Release);
    assert_eq!(second.word(offset).load(Ordering::Acquire), 9);
    // SAFETY: nobody else knows this memory.
    unsafe {
        first.bytes_mut(first.layout().pipe(2, 2), PIPE).fill(7);
        assert!(second.bytes(second.layout().pipe(2, 2), PIPE).iter().all(|&b| b == 7));
    }
}

#[test]
fn memory_of_another_size_is_refused() {
    let (fd, _first) = Shared::create(3, 1).unwrap();
    assert_eq!(Shared::open(&fd, 4).unwrap_err().kind(), io::ErrorKind::InvalidData);
    let foreign =
        rustix::fs::memfd_create("foreign", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    assert!(Shared::open(&foreign, 3).is_err());
}

#[test]
fn places_do_not_overlap() {
    for size in 1..6 {
        let layout = Layout::new(size);
        let mut spans = vec![(0, Layout::SIGNAL + 8)];
        for rank in 0..size {
            for plane in [Plane::Host, Plane::Stream] {
                spans.push((layout.phase(plane, rank), 8));
                spans.push((layout.card(plane, rank, 0), CARD_WORDS * 8));
                spans.push((layout.card(plane, rank, 1), CARD_WORDS * 8));
            }
            for peer in 0..size {
                spans.push((layout.sender(rank, peer), 128));
                spans.push((layout.receiver(rank, peer), 128));
                spans.push((layout.pipe(rank, peer), PIPE));
            }
            spans.push((layout.staging(rank, 0), CHUNK));
            spans.push((layout.staging(rank, 1), CHUNK));
        }
        spans.push((layout.results(0), CHUNK));
        spans.push((layout.results(1), CHUNK));
        spans.sort_unstable();
        assert!(spans.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{spans:?}");
        assert!(spans.last().is_some_and(|last| last.0 + last.1 <= layout.bytes()));
    }
}
