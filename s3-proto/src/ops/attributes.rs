//! `GetObjectAttributes`.

use ernic_store::{ObjectInfo, ObjectPart};
use s3s::{
    S3Request, S3Response, S3Result,
    dto::{
        self, Checksum, ChecksumType, GetObjectAttributesInput, GetObjectAttributesOutput, GetObjectAttributesParts,
        ObjectAttributes, StorageClass,
    },
    s3_error,
};

use super::{
    Operations, checksum_type, etag,
    list::{MAX_KEYS, limit},
    version,
};
use crate::{error::store as refused, request::Context};

pub(super) async fn get(
    ops: &Operations,
    request: S3Request<GetObjectAttributesInput>,
) -> S3Result<S3Response<GetObjectAttributesOutput>> {
    use ObjectAttributes as Attributes;
    const KNOWN: [&str; 5] = [
        Attributes::ETAG,
        Attributes::CHECKSUM,
        Attributes::OBJECT_PARTS,
        Attributes::STORAGE_CLASS,
        Attributes::OBJECT_SIZE,
    ];
    let context = Context::of(&request)?;
    let input = request.input;
    let names: Vec<&str> =
        input.object_attributes.iter().flat_map(|names| names.as_str().split(',')).map(str::trim).collect();
    if let Some(unknown) = names.iter().find(|name| !KNOWN.contains(name)) {
        return Err(s3_error!(InvalidArgument, "Invalid attribute name specified: {unknown}."));
    }
    if names.is_empty() {
        return Err(s3_error!(InvalidArgument, "The header x-amz-object-attributes names no attribute."));
    }
    let asked = |name: &str| names.contains(&name);
    let max = limit("x-amz-max-parts", input.max_parts, MAX_KEYS)?;
    let after = input.part_number_marker.unwrap_or(0);
    let named = version(input.version_id.as_deref())?;
    let info = ops.store.head(&input.bucket, &input.key, named).await.map_err(refused)?;
    super::object::check_conditions(&context, &info)?;
    Ok(S3Response::new(GetObjectAttributesOutput {
        checksum: (asked(Attributes::CHECKSUM) && !info.checksums.is_empty()).then(|| checksum(&info)),
        e_tag: asked(Attributes::ETAG).then(|| etag(&info.etag)),
        last_modified: Some(info.modified.into()),
        object_parts: (asked(Attributes::OBJECT_PARTS) && !info.parts.is_empty()).then(|| parts(&info, after, max)),
        object_size: asked(Attributes::OBJECT_SIZE).then(|| i64::try_from(info.size).unwrap_or(i64::MAX)),
        storage_class: asked(Attributes::STORAGE_CLASS).then(|| StorageClass::from_static(StorageClass::STANDARD)),
        version_id: ops.shown_version(&input.bucket, &info).await,
        ..Default::default()
    }))
}

fn checksum(info: &ObjectInfo) -> Checksum {
    with_checksums!(Checksum, &info.checksums, {
        checksum_type: Some(ChecksumType::from_static(checksum_type(&info.checksums))),
    })
}

/// One page of the parts: at most `max` with numbers above `after`.
fn parts(info: &ObjectInfo, after: i32, max: i32) -> GetObjectAttributesParts {
    let mut rest = info.parts.iter().filter(|part| i32::from(part.number) > after);
    let page: Vec<dto::ObjectPart> = rest.by_ref().take(usize::try_from(max).unwrap_or_default()).map(part).collect();
    let more = max > 0 && rest.next().is_some();
    GetObjectAttributesParts {
        is_truncated: Some(more),
        max_parts: Some(max),
        next_part_number_marker: page.last().and_then(|part| part.part_number),
        part_number_marker: Some(after),
        parts: Some(page),
        total_parts_count: i32::try_from(info.parts.len()).ok(),
    }
}

fn part(part: &ObjectPart) -> dto::ObjectPart {
    with_checksums!(dto::ObjectPart, &part.checksums, {
        part_number: Some(part.number.into()),
        size: i64::try_from(part.size).ok(),
    })
}
