// SPDX-License-Identifier: Apache-2.0
// The form of a new clip: the picture, what is sent, and errors beside the field that they name.

const form = document.getElementById('composer');
const fields = form.elements;
const shape = document.getElementById('shape');
const sizeField = document.getElementById('size-field');
const drop = document.getElementById('drop');
const picture = document.getElementById('picture');
const submit = form.querySelector('[type=submit]');
const kTexts = ['prompt', 'seconds', 'seed', 'num_inference_steps', 'cfg_video', 'cfg_audio', 'priority',
                'negative_prompt'];

function showPicture() {
  const [file] = fields.input_reference.files;
  const image = picture.querySelector('img');
  if (image.src) URL.revokeObjectURL(image.src);
  picture.hidden = !file;
  if (file) image.src = URL.createObjectURL(file);
  else image.removeAttribute('src');
}

function setPicture(blob, name) {
  const files = new DataTransfer();
  if (blob) files.items.add(new File([blob], name, {type: blob.type}));
  fields.input_reference.files = files.files;
  showPicture();
}

function clearErrors() {
  for (const field of form.querySelectorAll('[aria-invalid]')) {
    field.removeAttribute('aria-invalid');
    field.removeAttribute('aria-describedby');
  }
  for (const error of form.querySelectorAll('.field > .error')) error.remove();
  document.getElementById('form-error').textContent = '';
}

/** What went wrong, beside the field `name`, or under the form where there is no such field. */
export function showError(message, name) {
  const field = name === 'preset' ? shape : name ? fields[name] : null;
  if (!field?.closest) {
    document.getElementById('form-error').textContent = message;
    return;
  }
  const error = document.createElement('p');
  error.className = 'error';
  error.id = `${field.id}-error`;
  error.textContent = message;
  if (field.closest('details')) field.closest('details').open = true;
  field.closest('.field').append(error);
  field.setAttribute('aria-invalid', 'true');
  field.setAttribute('aria-describedby', error.id);
  field.focus();
}

/** The form as a request; what is left empty is left to the server. */
function body() {
  const data = new FormData();
  for (const name of kTexts)
    if (fields[name].value.trim()) data.set(name, fields[name].value);
  if (shape.value === 'custom') data.set('size', fields.size.value.trim());
  else if (shape.value) data.set('preset', shape.value);
  if (!fields.audio.checked) data.set('audio', 'false');
  if (fields.enhance.checked) data.set('enhance', 'true');
  const [file] = fields.input_reference.files;
  if (file) data.set('input_reference', file);
  return data;
}

function checkHere() {
  if (!fields.prompt.value.trim()) return ['Say what should be seen and heard.', 'prompt'];
  for (const field of [...kTexts.map((name) => fields[name]), ...(shape.value === 'custom' ? [fields.size] : [])])
    if (!field.checkValidity()) return [field.validationMessage, field.name];
  return null;
}

/** Fills the form with the settings of `video`, its picture too. */
export function fill(video, pictureBlob) {
  clearErrors();
  for (const name of kTexts) fields[name].value = video[name] ?? '';
  shape.value = video.preset ?? 'custom';
  fields.size.value = video.preset ? '' : video.size;
  sizeField.hidden = shape.value !== 'custom';
  fields.audio.checked = video.audio;
  fields.enhance.checked = video.enhance && !fields.enhance.closest('.field').hidden;
  setPicture(pictureBlob, 'picture');
  fields.prompt.focus();
  form.scrollIntoView({block: 'nearest'});
}

/** `make(FormData)` is called with each request; what it throws is shown. */
export function start(make) {
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    clearErrors();
    const wrong = checkHere();
    if (wrong) return showError(...wrong);
    submit.disabled = true;
    try {
      await make(body());
    } catch (error) {
      showError(error.message, error.field);
    } finally {
      submit.disabled = false;
    }
  });
  form.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  shape.addEventListener('change', () => {
    sizeField.hidden = shape.value !== 'custom';
    if (shape.value === 'custom') fields.size.focus();
  });
  fields.input_reference.addEventListener('change', showPicture);
  document.getElementById('remove-picture').addEventListener('click', () => {
    setPicture(null);
    fields.input_reference.focus();
  });
  for (const name of ['dragenter', 'dragover']) drop.addEventListener(name, () => drop.classList.add('over'));
  for (const name of ['dragleave', 'drop']) drop.addEventListener(name, () => drop.classList.remove('over'));
  form.addEventListener('paste', (event) => {
    const file = [...event.clipboardData.files].find((f) => f.type.startsWith('image/'));
    if (file) setPicture(file, file.name);
  });
}
