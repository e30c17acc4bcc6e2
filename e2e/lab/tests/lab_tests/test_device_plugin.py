"""The messages of the device plugins, against protobuf's own encoder."""

from google.protobuf import descriptor_pb2

from duplex_lab.device_plugin import Devices, encoded, fields


def test_messages_are_protobufs() -> None:
    # FieldDescriptorProto: name is text 1, json_name text 10; FileDescriptorProto's fields nest messages.
    theirs = descriptor_pb2.FieldDescriptorProto(name="n" * 300, json_name="j").SerializeToString()
    assert encoded(1, "n" * 300) + encoded(10, "j") == theirs
    assert list(fields(theirs)) == [(1, b"n" * 300), (10, b"j")]
    nested = descriptor_pb2.DescriptorProto(field=[descriptor_pb2.FieldDescriptorProto(name="x")]).SerializeToString()
    assert encoded(2, encoded(1, "x")) == nested
    assert list(fields(b"")) == []


def test_devices_are_read_as_they_are_written() -> None:
    text = "vpc.amazonaws.com/efa=16=/dev/infiniband/uverbs{}"
    assert str(Devices.parse(text)) == text
