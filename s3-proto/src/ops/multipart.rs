//! Multipart uploads.

use std::collections::BTreeSet;

use ernic_store::{Commit, Condition, PartInfo, PartName, StoreError, UploadChecksum, UploadOptions};
use s3s::{
    S3ErrorCode, S3Request, S3Response, S3Result,
    dto::{
        AbortMultipartUploadInput, AbortMultipartUploadOutput, ChecksumAlgorithm, ChecksumType, CommonPrefix,
        CompleteMultipartUploadInput, CompleteMultipartUploadOutput, CompletedPart, CreateMultipartUploadInput,
        CreateMultipartUploadOutput, ListMultipartUploadsInput, ListMultipartUploadsOutput, ListPartsInput,
        ListPartsOutput, MultipartUpload, Part, StorageClass, UploadPartInput, UploadPartOutput,
    },
    s3_error,
};

use super::{
    Operations, checksum_headers, checksum_of, checksum_type,
    completions::Done,
    etag, initiator,
    list::{Encoding, MAX_KEYS, limit},
    object::{receive, size},
    owner,
};
use crate::{
    checksum::{self, Algorithm},
    error::{error, store as refused},
    request::{Checksum, Context},
};

/// Part numbers are 1 to this (S3 API reference, `UploadPart`).
const MAX_PARTS: i32 = 10_000;

pub(super) async fn create(
    ops: &Operations,
    request: S3Request<CreateMultipartUploadInput>,
) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
    let context = Context::of(&request)?;
    let input = request.input;
    let checksum = declared(
        input.checksum_algorithm.as_ref().map(|algorithm| algorithm.as_str()),
        input.checksum_type.as_ref().map(|kind| kind.as_str()),
    )?;
    let options = UploadOptions { meta: context.meta.clone(), tags: context.tags.clone(), checksum };
    let (checksum_algorithm, checksum_type) = shown(&options);
    let upload = ops.store.create_upload(&input.bucket, &input.key, options).await.map_err(refused)?;
    Ok(S3Response::new(CreateMultipartUploadOutput {
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(upload),
        checksum_algorithm,
        checksum_type,
        ..Default::default()
    }))
}

/// The checksum that an upload is declared to have. CRC64NVME is always of the whole object, the SHAs never are, and the
/// other CRCs are of the parts' sums unless the client says otherwise ("Checking object integrity" in the S3 user guide).
fn declared(algorithm: Option<&str>, kind: Option<&str>) -> S3Result<Option<UploadChecksum>> {
    let full_object = match kind {
        None => None,
        Some(ChecksumType::FULL_OBJECT) => Some(true),
        Some(ChecksumType::COMPOSITE) => Some(false),
        Some(other) => {
            return Err(s3_error!(InvalidRequest, "Value for x-amz-checksum-type header is invalid: {other}."));
        }
    };
    let Some(algorithm) = algorithm else {
        return match kind {
            None => Ok(None),
            Some(_) => Err(s3_error!(InvalidRequest, "x-amz-checksum-type needs x-amz-checksum-algorithm.")),
        };
    };
    let algorithm = Algorithm::named(algorithm)?;
    let full_object = full_object.unwrap_or(algorithm == Algorithm::Crc64Nvme);
    let possible = if full_object { algorithm.combines() } else { algorithm != Algorithm::Crc64Nvme };
    if !possible {
        return Err(s3_error!(
            InvalidRequest,
            "The {} checksum type cannot be used with the {} checksum algorithm.",
            kind.unwrap_or_default(),
            algorithm.name().to_ascii_lowercase()
        ));
    }
    Ok(Some(UploadChecksum { algorithm: algorithm.name().to_owned(), full_object }))
}

/// The algorithm that an upload is declared to have.
pub(super) fn upload_algorithm(options: &UploadOptions) -> Option<Algorithm> {
    Algorithm::from_name(&options.checksum.as_ref()?.algorithm)
}

/// What an upload is declared to have, as answers show it.
fn shown(options: &UploadOptions) -> (Option<ChecksumAlgorithm>, Option<ChecksumType>) {
    let kind = |full| if full { ChecksumType::FULL_OBJECT } else { ChecksumType::COMPOSITE };
    options
        .checksum
        .as_ref()
        .map(|checksum| {
            (ChecksumAlgorithm::from(checksum.algorithm.clone()), ChecksumType::from_static(kind(checksum.full_object)))
        })
        .unzip()
}

/// The algorithm of a part's checksum: the one that the upload is declared to have. A client that sends another is refused; for
/// one that sends none it is computed.
fn part_algorithm(options: &UploadOptions, sent: &Checksum) -> S3Result<Algorithm> {
    match upload_algorithm(options) {
        None => Ok(sent.algorithm),
        Some(declared) if declared == sent.algorithm || !sent.named => Ok(declared),
        Some(declared) => Err(s3_error!(
            InvalidRequest,
            "Checksum Type mismatch occurred, expected checksum Type: {}, actual checksum Type: {}.",
            declared.name().to_ascii_lowercase(),
            sent.algorithm.name().to_ascii_lowercase()
        )),
    }
}

pub(super) fn part_number(number: i32) -> S3Result<u16> {
    u16::try_from(number).ok().filter(|_| (1..=MAX_PARTS).contains(&number)).ok_or_else(|| {
        s3_error!(InvalidArgument, "Part number must be an integer between 1 and {MAX_PARTS}, inclusive: {number}.")
    })
}

pub(super) async fn upload_part(
    ops: &Operations,
    request: S3Request<UploadPartInput>,
) -> S3Result<S3Response<UploadPartOutput>> {
    let context = Context::of(&request)?;
    let input = request.input;
    let number = part_number(input.part_number)?;
    let size = size(&context)?;
    let upload = ops.store.head_upload(&input.bucket, &input.key, &input.upload_id).await.map_err(refused)?;
    let algorithm = part_algorithm(&upload.options, &context.checksum)?;
    let writer = ops.store.put_part(&input.bucket, &input.key, &input.upload_id, number, size).await;
    let info = receive(ops, &context, size, algorithm, writer.map_err(refused)?, Condition::None).await?;
    let output = UploadPartOutput { e_tag: Some(etag(&info.etag)), ..Default::default() };
    let mut headers = checksum_headers(&info.checksums);
    // It is about objects.
    headers.remove("x-amz-checksum-type");
    Ok(S3Response::with_headers(output, headers))
}

pub(super) async fn abort(
    ops: &Operations,
    request: S3Request<AbortMultipartUploadInput>,
) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
    let input = request.input;
    ops.store.abort_upload(&input.bucket, &input.key, &input.upload_id).await.map_err(refused)?;
    Ok(S3Response::new(AbortMultipartUploadOutput::default()))
}

pub(super) async fn complete(
    ops: &Operations,
    request: S3Request<CompleteMultipartUploadInput>,
) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
    let context = Context::of(&request)?;
    let host = request.headers.get(http::header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let location = format!("http://{host}{}", request.uri.path());
    let input = request.input;
    let (bucket, key, upload) = (&input.bucket, &input.key, &input.upload_id);
    let listed = input.multipart_upload.as_ref().and_then(|parts| parts.parts.as_deref()).unwrap_or_default();

    let options = match ops.store.head_upload(bucket, key, upload).await {
        Ok(upload) => upload.options,
        Err(StoreError::NoSuchUpload) => {
            let done = ops.completions.find(bucket, key, upload, listed).ok_or(S3ErrorCode::NoSuchUpload)?;
            return Ok(S3Response::new(completed(input, done, location)));
        }
        Err(error) => return Err(refused(error)),
    };
    let have = ops.store.list_parts(bucket, key, upload).await.map_err(refused)?;
    let parts = match_parts(listed, &have)?;
    let size: u64 = parts.iter().map(|part| part.info.size).sum();
    if let Some(expected) = input.mpu_object_size
        && u64::try_from(expected) != Ok(size)
    {
        return Err(s3_error!(InvalidRequest, "x-amz-mp-object-size is {expected}, but the parts have {size} bytes."));
    }
    check_sizes(&parts, ops.config.min_part)?;
    let etags = parts.iter().map(|part| (part.info.etag.as_str(), part.info.size));
    let etag_of_all = checksum::multipart_etag(etags)
        .ok_or_else(|| error(S3ErrorCode::InternalError, "The parts have ETags of different kinds."))?;
    let checksums = whole_checksum(&input, &options, &parts)?;
    let condition = ops.condition(bucket, key, &context.conditions).await?;

    let names: Vec<PartName> =
        parts.iter().map(|part| PartName { number: part.number, etag: part.info.etag.clone() }).collect();
    let commit = Commit { etag: etag_of_all, checksums, condition };
    let info = ops.store.complete_upload(bucket, key, upload, &names, commit).await.map_err(refused)?;

    let done = Done::new(&info);
    ops.completions.add(bucket, key, upload, listed, done.clone());
    Ok(S3Response::new(completed(input, done, location)))
}

/// The answer to a completion.
fn completed(input: CompleteMultipartUploadInput, done: Done, location: String) -> CompleteMultipartUploadOutput {
    with_checksums!(CompleteMultipartUploadOutput, &done.checksums, {
        checksum_type: (!done.checksums.is_empty()).then(|| ChecksumType::from_static(checksum_type(&done.checksums))),
        e_tag: Some(etag(&done.etag)),
        version_id: done.version,
        location: Some(location),
        bucket: Some(input.bucket),
        key: Some(input.key),
        ..Default::default()
    })
}

/// The parts that the client lists, in its order, which must be that of their numbers.
fn match_parts<'a>(listed: &[CompletedPart], have: &'a [PartInfo]) -> S3Result<Vec<&'a PartInfo>> {
    if listed.is_empty() {
        return Err(s3_error!(MalformedXML, "The list of parts is empty."));
    }
    let mut parts: Vec<&PartInfo> = Vec::with_capacity(listed.len());
    let mut last = 0;
    for part in listed {
        let number = part.part_number.ok_or_else(|| s3_error!(MalformedXML, "A part has no PartNumber."))?;
        if number <= last {
            return Err(s3_error!(InvalidPartOrder, "The list of parts was not in ascending order at part {number}."));
        }
        last = number;
        let invalid =
            || s3_error!(InvalidPart, "Part {number} has not been uploaded, or its ETag or checksum is another one.");
        let number = part_number(number)?;
        let there = have.binary_search_by_key(&number, |part| part.number).ok().and_then(|index| have.get(index));
        let there = there.ok_or_else(invalid)?;
        let etag = part.e_tag.as_ref().ok_or_else(|| s3_error!(MalformedXML, "Part {number} has no ETag."))?;
        if etag.value().trim_matches('"') != there.info.etag {
            return Err(invalid());
        }
        for (algorithm, value) in declared_checksums!(part) {
            if checksum_of(&there.info.checksums, algorithm) != Some(value) {
                return Err(invalid());
            }
        }
        parts.push(there);
    }
    Ok(parts)
}

/// All parts but the last have a least size.
fn check_sizes(parts: &[&PartInfo], least: u64) -> S3Result<()> {
    let Some((_, but_last)) = parts.split_last() else { return Ok(()) };
    match but_last.iter().find(|part| part.info.size < least) {
        None => Ok(()),
        Some(part) => Err(s3_error!(
            EntityTooSmall,
            "Your proposed upload is smaller than the minimum allowed size: part {} has {} bytes, and only the last may have \
             less than {least}.",
            part.number,
            part.info.size
        )),
    }
}

/// The object's checksum, checked against what the client expects: the one that the upload is declared to have; else that of
/// the kind that all parts have, where CRC64NVME is of the whole object, the SHAs are of the parts' sums, and CRC32 and CRC32C
/// are of the whole object if the client says so now ("Checking object integrity" in the S3 user guide).
fn whole_checksum(
    input: &CompleteMultipartUploadInput,
    options: &UploadOptions,
    parts: &[&PartInfo],
) -> S3Result<Vec<(String, String)>> {
    let sums = |algorithm| -> Option<Vec<(&str, u64)>> {
        parts.iter().map(|part| Some((checksum_of(&part.info.checksums, algorithm)?, part.info.size))).collect()
    };
    let found = match upload_algorithm(options) {
        Some(algorithm) => sums(algorithm).map(|sums| (algorithm, sums)),
        None => Algorithm::ALL.into_iter().find_map(|algorithm| Some((algorithm, sums(algorithm)?))),
    };
    let kind = input.checksum_type.as_ref().map(|kind| kind.as_str());
    if let (Some(said), (Some(_), Some(declared))) = (kind, shown(options))
        && said != declared.as_str()
    {
        return Err(s3_error!(
            InvalidRequest,
            "The upload was created using the {} checksum mode. The complete request must use the same checksum mode.",
            declared.as_str()
        ));
    }
    let mut expected = declared_checksums!(input);
    let full = match &options.checksum {
        Some(declared) => declared.full_object,
        None => kind == Some(ChecksumType::FULL_OBJECT),
    };

    let mut kept = None;
    if let Some((algorithm, sums)) = found {
        let combine = || algorithm.combine(sums.iter().copied());
        let compose = || algorithm.compose(sums.iter().map(|(sum, _)| *sum));
        let value = if full || algorithm == Algorithm::Crc64Nvme { combine() } else { compose() };
        kept = value.map(|value| (algorithm, value, combine()));
    }
    match (expected.next(), kept) {
        (None, kept) => {
            Ok(kept.map(|(algorithm, value, _)| (algorithm.name().to_owned(), value)).into_iter().collect())
        }
        (Some((wanted, value)), Some((algorithm, kept, whole))) if wanted == algorithm => {
            // Where nothing was declared, the header may carry either kind.
            let undeclared = options.checksum.is_none();
            if value == kept || undeclared && Some(value) == whole.as_deref() {
                Ok(vec![(algorithm.name().to_owned(), value.to_owned())])
            } else {
                Err(s3_error!(BadDigest, "The {} you specified did not match the calculated checksum.", wanted.name()))
            }
        }
        (Some((wanted, _)), _) => Err(s3_error!(
            InvalidRequest,
            "The parts were not uploaded with the checksum that {} expects.",
            wanted.header()
        )),
    }
}

pub(super) async fn list_parts(
    ops: &Operations,
    request: S3Request<ListPartsInput>,
) -> S3Result<S3Response<ListPartsOutput>> {
    let input = request.input;
    let max = limit("max-parts", input.max_parts, MAX_KEYS)?;
    let upload = ops.store.head_upload(&input.bucket, &input.key, &input.upload_id).await.map_err(refused)?;
    let (checksum_algorithm, checksum_type) = shown(&upload.options);
    let parts = ops.store.list_parts(&input.bucket, &input.key, &input.upload_id).await.map_err(refused)?;
    let after = input.part_number_marker.unwrap_or(0);
    let mut rest = parts.iter().filter(|part| i32::from(part.number) > after);
    let page: Vec<Part> = rest.by_ref().take(usize::try_from(max).unwrap_or_default()).map(part).collect();
    let more = max > 0 && rest.next().is_some();
    Ok(S3Response::new(ListPartsOutput {
        bucket: Some(input.bucket),
        checksum_algorithm,
        checksum_type,
        initiator: Some(initiator()),
        is_truncated: Some(more),
        key: Some(input.key),
        max_parts: Some(max),
        next_part_number_marker: page.last().filter(|_| more).and_then(|part| part.part_number),
        owner: Some(owner()),
        part_number_marker: Some(after),
        parts: Some(page),
        storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
        upload_id: Some(input.upload_id),
        ..Default::default()
    }))
}

fn part(part: &PartInfo) -> Part {
    let info = &part.info;
    with_checksums!(Part, &info.checksums, {
        e_tag: Some(etag(&info.etag)),
        last_modified: Some(info.modified.into()),
        part_number: Some(part.number.into()),
        size: i64::try_from(info.size).ok(),
    })
}

pub(super) async fn list_uploads(
    ops: &Operations,
    request: S3Request<ListMultipartUploadsInput>,
) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
    let input = request.input;
    let encoding = Encoding::new(input.encoding_type.as_ref())?;
    let max = limit("max-uploads", input.max_uploads, MAX_KEYS)?;
    let most = usize::try_from(max).unwrap_or_default();
    let prefix = input.prefix.unwrap_or_default();
    let delimiter = input.delimiter.unwrap_or_default();
    let key_marker = input.key_marker.unwrap_or_default();
    let id_marker = input.upload_id_marker.unwrap_or_default();

    let uploads = ops.store.list_uploads(&input.bucket).await.map_err(refused)?;
    let mut page = Vec::new();
    let mut groups = BTreeSet::new();
    let (mut last, mut more) = (None, false);
    for upload in uploads {
        // `upload-id-marker` counts only with `key-marker`.
        let after = upload.key > key_marker
            || !key_marker.is_empty() && upload.key == key_marker && !id_marker.is_empty() && upload.upload > id_marker;
        let Some(rest) = upload.key.strip_prefix(prefix.as_str()).filter(|_| after) else { continue };
        let group = match rest.find(delimiter.as_str()) {
            Some(at) if !delimiter.is_empty() => upload.key.get(..prefix.len() + at + delimiter.len()),
            _ => None,
        };
        if group.is_some_and(|group| groups.contains(group) || group <= key_marker.as_str()) {
            continue;
        }
        if page.len() + groups.len() >= most {
            more = most > 0;
            break;
        }
        match group {
            Some(group) => {
                groups.insert(group.to_owned());
                last = Some((group.to_owned(), String::new()));
            }
            None => {
                last = Some((upload.key.clone(), upload.upload.clone()));
                let (checksum_algorithm, checksum_type) = shown(&upload.options);
                page.push(MultipartUpload {
                    checksum_algorithm,
                    checksum_type,
                    initiator: Some(initiator()),
                    initiated: Some(upload.started.into()),
                    key: Some(encoding.write(&upload.key)),
                    owner: Some(owner()),
                    storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
                    upload_id: Some(upload.upload),
                });
            }
        }
    }
    let next = last.filter(|_| more);
    Ok(S3Response::new(ListMultipartUploadsOutput {
        bucket: Some(input.bucket),
        common_prefixes: Some(
            groups.iter().map(|group| CommonPrefix { prefix: Some(encoding.write(group)) }).collect(),
        ),
        delimiter: Some(delimiter).filter(|delimiter| !delimiter.is_empty()).map(|text| encoding.write(&text)),
        encoding_type: input.encoding_type,
        is_truncated: Some(more),
        key_marker: Some(encoding.write(&key_marker)),
        max_uploads: Some(max),
        next_key_marker: next.as_ref().map(|(key, _)| encoding.write(key)),
        next_upload_id_marker: next.map(|(_, id)| id),
        prefix: Some(encoding.write(&prefix)),
        upload_id_marker: Some(id_marker),
        uploads: Some(page),
        ..Default::default()
    }))
}
